"""One process: init, enable, shutdown, generations, forks, and what an uncaught exception does."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest

import npucoll
from npucoll import runtime as runtime_module
from npucoll.hooks import EngineProvider, LauncherProvider, ModeProvider
from npucoll.hooks.manager import HookManager

from test_hooks import Point, plugin  # isort: skip  # a neighbour in this directory


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """Run every test as one rank without a launcher, in a directory without a configuration."""
    prefixes = ("NPUCOLL_", "HCCL_", "RANK", "OMPI_", "PMI", "SLURM_", "HOROVOD_", "CM_")
    for name in list(os.environ):
        if name.startswith(prefixes) or name in ("WORLD_SIZE", "LOCAL_RANK", "TF_CONFIG", "JOB_ID"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def runtime(monkeypatch):
    made = runtime_module.Runtime()
    before = sys.excepthook
    yield made
    made.shutdown()
    assert sys.excepthook == before


def with_plugins(runtime, *points):
    """Give ``runtime`` the plugins behind ``points`` instead of the installed ones."""
    runtime._hooks = HookManager((), points)
    return runtime


def single(runtime):
    return runtime.init(engine="single")


def python(code, tmp_path, **env):
    """Run ``code`` in a fresh process and return it; it must end by itself."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("NPUCOLL_")}
    variables.update(env)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command,
        cwd=str(tmp_path),
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


# -- init


def test_init_again_is_the_same_and_other_arguments_are_refused(runtime):
    comm = runtime.init(engine="single", timeout=5)
    assert runtime.init(engine="single", timeout=5) is comm
    assert runtime.communicator() is comm
    with pytest.raises(npucoll.ConfigError, match="a timeout of 5 s, not 'single' and 6 s"):
        runtime.init(engine="single", timeout=6)
    with pytest.raises(npucoll.ConfigError):
        runtime.init(timeout=5, engine="native")
    assert comm.allreduce(np.arange(3.0)).tolist() == [0, 1, 2]


def test_unknown_engine_lists_the_known(runtime):
    with pytest.raises(
        npucoll.ConfigError, match="no engine 'nativ'; known engines: native, single; did you mean 'native'"
    ):
        runtime.init(engine="nativ")


def test_engine_and_timeout_come_from_the_configuration(runtime, tmp_path):
    (tmp_path / "npucoll.toml").write_text('engine = "single"\ntimeout = 7\n')
    assert runtime.init().engine.name == "single"
    assert runtime.init(timeout=7) is runtime.communicator()


def test_rank_queries_answer_before_init_and_after(runtime):
    identity = runtime.identity()
    assert (identity.rank, identity.size, identity.node_count) == (0, 1, 1)
    single(runtime)
    assert runtime.identity().size == 1


def test_no_communicator_without_init(runtime):
    with pytest.raises(npucoll.NotInitialized, match="call npucoll.init"):
        runtime.communicator()


def test_shutdown_is_repeatable_and_init_starts_a_new_generation(runtime):
    old = single(runtime)
    handles = [old, old.group([0]), old.group([0], "a").group([0], "b")]
    handles[2].barrier()
    runtime.shutdown()
    runtime.shutdown()
    for handle in handles:
        with pytest.raises(npucoll.NotInitialized):
            handle.allreduce(np.zeros(1))
    new = single(runtime)
    assert new is not old
    assert runtime.generation == 2
    new.barrier()


def test_communicator_as_a_context_ends_the_generation(runtime):
    with single(runtime) as comm:
        comm.barrier()
    with pytest.raises(npucoll.NotInitialized):
        runtime.communicator()
    with single(runtime) as new:
        assert new is not comm
        new.barrier()
    assert runtime.generation == 2


def test_ranks_on_several_hosts_without_an_engine_that_crosses_them(runtime, monkeypatch):
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(npucoll.UnsupportedError) as caught:
        runtime.init()
    text = str(caught.value)
    assert "no engine here can serve 4 ranks on 2 hosts" in text
    assert "native: does not cross hosts" in text
    with pytest.raises(npucoll.UnsupportedError, match="does not cross hosts"):
        runtime.init(engine="native")


def test_engine_that_crosses_hosts_is_taken_by_itself(runtime, monkeypatch):
    worlds = []

    def open_engine(world):
        worlds.append(world)
        raise npucoll.PeerLost("enough seen")

    provider = EngineProvider("far", "x", open_engine, crosses_hosts=True)
    with_plugins(runtime, Point("far", plugin(npucoll_engines=lambda: [provider])))
    for name, value in {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(npucoll.PeerLost):
        runtime.init(timeout=3)
    assert (worlds[0].identity.size, worlds[0].timeout, worlds[0].connect_timeout) == (4, 3, 120)


def test_launcher_of_a_plugin_is_asked(runtime):
    from npucoll.bootstrap.identity import Identity

    def detect(env):
        return Identity.on_one_host(3, 5, job="j", source="mine", detail="mine") if env.get("MINE") else None

    with_plugins(runtime, Point("mine", plugin(npucoll_launchers=lambda: [LauncherProvider("mine", 1, detect)])))
    assert runtime.identity().size == 1
    os.environ["MINE"] = "1"
    try:
        assert (runtime.identity().rank, runtime.identity().size) == (3, 5)
    finally:
        del os.environ["MINE"]


# -- hooks that init and shutdown call


def test_plugins_see_life_and_collectives(runtime):
    seen = []
    observer = plugin(
        npucoll_initialized=lambda comm: seen.append(("initialized", comm.closed)),
        npucoll_shutdown=lambda comm: seen.append(("shutdown", comm.closed)),
        npucoll_collective=lambda event: seen.append(event),
    )
    comm = single(with_plugins(runtime, Point("observer", observer)))
    comm.allreduce(np.zeros((2, 3), np.float32), name="mine")
    with pytest.raises(npucoll.UnsupportedError):
        comm.allreduce(np.zeros(3, bool), "mean")
    work = comm.broadcast_async(np.zeros(2))
    work.wait()
    work.wait()
    runtime.shutdown()
    assert (seen[0], seen[-1]) == (("initialized", False), ("shutdown", False))
    event = seen[1]
    assert event[:6] == ("world", "allreduce", "mine", "float32", (2, 3), 24)
    assert event.seconds >= 0
    assert event.error is None
    assert [one.kind for one in seen[1:-1]] == ["allreduce", "allreduce", "broadcast"]
    assert isinstance(seen[2].error, npucoll.UnsupportedError)


# -- enable


def test_enable_returns_modules_and_initializes_first(runtime):
    loaded = []

    def mode(name):
        def load():
            loaded.append((name, runtime.communicator().size))
            return types.ModuleType(name)

        return ModeProvider(name, "x", load)

    with_plugins(runtime, Point("p", plugin(npucoll_modes=lambda: [mode("one"), mode("two")])))
    one = runtime.enable("one")
    assert one.__name__ == "one"
    assert loaded == [("one", 1)]
    assert runtime.enable("one") is one
    again, two = runtime.enable("one", "two")
    assert again is one
    assert two.__name__ == "two"
    assert len(loaded) == 2
    assert runtime.enable() == ()
    runtime.shutdown()
    assert runtime.enable("one") is one


def test_enable_without_names_takes_the_configured_ones_always_as_a_tuple(runtime, tmp_path):
    module = types.ModuleType("one")
    with_plugins(runtime, Point("p", plugin(npucoll_modes=lambda: [ModeProvider("one", "x", lambda: module)])))
    (tmp_path / "npucoll.toml").write_text('modes = ["one"]\n')
    assert runtime.enable() == (module,)


def test_configured_names_that_nobody_knows_name_the_line(runtime, tmp_path):
    path = tmp_path / "npucoll.toml"
    path.write_text('\nmodes = ["kears"]\nengine = "fast"\n')
    with pytest.raises(npucoll.PluginError, match="line 2: no mode 'kears' is installed") as caught:
        runtime.enable()
    assert str(path) in str(caught.value)
    with pytest.raises(npucoll.ConfigError, match="line 3: no engine 'fast'; known engines: native, single"):
        runtime.init()


def test_enable_after_init_with_a_timeout_keeps_it(runtime):
    module = types.ModuleType("one")
    with_plugins(runtime, Point("p", plugin(npucoll_modes=lambda: [ModeProvider("one", "x", lambda: module)])))
    comm = runtime.init(engine="single", timeout=5)
    assert runtime.enable("one") is module
    assert runtime.communicator() is comm


def test_enable_says_what_is_wrong_before_it_initializes(runtime):
    def fail():
        raise ImportError("cannot import name 'keras'")

    offer = [
        ModeProvider("bare", "x", lambda: None, lambda: "needs TensorFlow: pip install tensorflow"),
        ModeProvider("broken", "x", fail),
    ]
    with_plugins(runtime, Point("p", plugin(npucoll_modes=lambda: offer)))
    with pytest.raises(npucoll.PluginError, match="mode 'bare': needs TensorFlow: pip install tensorflow"):
        runtime.enable("bare")
    with pytest.raises(npucoll.PluginError, match="no mode 'bar' is installed"):
        runtime.enable("bar")
    with pytest.raises(npucoll.ConfigError, match="takes the names of modes, got 3"):
        runtime.enable(3)
    with pytest.raises(npucoll.NotInitialized):
        runtime.communicator()
    with pytest.raises(npucoll.PluginError, match="mode 'broken' cannot be loaded: cannot import name 'keras'"):
        runtime.enable("broken")


def test_switching_off_a_plugin_takes_effect(runtime, monkeypatch):
    points = [Point("p", plugin(npucoll_modes=lambda: [ModeProvider("one", "x", lambda: types.ModuleType("one"))]))]
    monkeypatch.setattr("npucoll.hooks.manager.entry_points", lambda: points)
    assert "one" in runtime.hooks().modes()
    monkeypatch.setenv("NPUCOLL_DISABLE", "p")
    with pytest.raises(npucoll.PluginError, match="'one' is installed|no mode 'one'"):
        runtime.enable("one")
    with pytest.raises(npucoll.PluginError, match="'p' is switched off"):
        runtime.enable("p")


# -- forks, exceptions, exit


def test_forked_child_is_refused_in_words(runtime):
    comm = single(runtime)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for call in (runtime.init, runtime.communicator, runtime.identity, runtime.enable):
            try:
                call()
                said.append("nothing")
            except npucoll.NotInitialized as error:
                said.append(str(error))
        runtime.shutdown()
        os.write(writer, "\n".join(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read().splitlines()
    os.waitpid(child, 0)
    assert len(said) == 4
    assert all("forked from rank 0" in line for line in said)
    comm.barrier()


def test_uncaught_exception_ends_the_communicator_with_its_text(runtime, monkeypatch):
    told, shown = [], []
    monkeypatch.setattr(sys, "excepthook", lambda *args: shown.append(args))
    comm = single(runtime)
    group = comm.group([0])
    comm.engine.abort = told.append
    group.engine.abort = lambda text: told.append("group " + text)
    error = ValueError("bad batch 17")
    sys.excepthook(ValueError, error, None)
    assert told == ["ValueError: bad batch 17", "group ValueError: bad batch 17"]
    assert shown == [(ValueError, error, None)]
    runtime.shutdown()
    monkeypatch.undo()


def test_excepthook_of_others_stays(runtime):
    before = sys.excepthook
    single(runtime)
    ours = sys.excepthook
    calls = []

    def theirs(*args):
        calls.append(args)
        ours(*args)

    sys.excepthook = theirs
    runtime.shutdown()
    assert sys.excepthook is theirs
    single(runtime)
    assert sys.excepthook is theirs
    sys.excepthook = ours
    runtime.shutdown()
    assert sys.excepthook == before


def test_exit_shuts_down_and_keeps_the_exception(tmp_path):
    done = python(
        """
        import atexit, npucoll
        comm = npucoll.init(engine="single")
        raise ValueError("bad batch 17")
        """,
        tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("ValueError: bad batch 17")


def test_import_loads_no_framework_and_is_quick(tmp_path):
    code = """
        import sys, time
        start = time.process_time()
        import numpy
        numpy_alone = time.process_time() - start
        import npucoll
        for name in npucoll.__all__:
            if name != "native_api":
                getattr(npucoll, name)
        more = time.process_time() - start - numpy_alone
        frameworks = {"tensorflow", "keras", "tf_keras", "torch", "jax"} & set(sys.modules)
        assert not frameworks, frameworks
        assert npucoll.enable.__name__ == "enable"
        print(more)
    """
    best = min(float(python(code, tmp_path).stdout) for _ in range(4))
    assert best < 0.1


def test_no_module_hides_a_public_name():
    modules = {module.name for module in pkgutil.iter_modules(npucoll.__path__)}
    assert not modules & set(npucoll.__all__)
