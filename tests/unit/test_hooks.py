"""Each hook, what becomes of a plugin that goes wrong, and what enable says about it."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path

import pytest

import npucoll
from npucoll.hooks import CollectiveEvent, EngineProvider, LauncherProvider, ModeProvider, manager, spec

HOOKS = sorted(name for name in vars(spec) if name.startswith("npucoll_"))
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "hooks.md"


class Point:
    """An entry point as importlib.metadata gives it, with a plugin or an exception behind it."""

    dist = None

    def __init__(self, name, outcome, value="somewhere.plugin"):
        self.name = name
        self.value = value
        self._outcome = outcome

    def load(self):
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def plugin(**functions):
    """Return a module-like plugin whose functions are marked as hook implementations."""
    module = types.ModuleType("plugin")
    for name, function in functions.items():
        setattr(module, name, npucoll.hookimpl(function))
    return module


def modes(*names):
    return plugin(npucoll_modes=lambda: [ModeProvider(name, "a mode", lambda: None) for name in names])


def manage(*points, disabled=()):
    return manager.HookManager(disabled, points)


def report(hooks, name):
    return next(one for one in hooks.reports if one.name == name)


EVENT = CollectiveEvent("world", "allreduce", None, "float32", (2,), 8, 0.1, None)


# -- one test a hook, named after it


def test_npucoll_engines():
    def offer():
        return [EngineProvider("late", "x", lambda world: None, order=99), EngineProvider("early", "x", len, order=1)]

    engines = manage(Point("mine", plugin(npucoll_engines=offer))).engines()
    assert list(engines) == ["early", "native", "single", "late"]
    assert engines["late"].unavailable() is None


def test_npucoll_modes():
    hooks = manage(Point("a", modes("one", "two")), Point("b", modes("three")))
    assert sorted(hooks.modes()) == ["one", "three", "two"]
    assert hooks.find_mode("three").name == "three"


def test_npucoll_launchers():
    mine = LauncherProvider("mine", 1, lambda env: None)
    found = manage(Point("mine", plugin(npucoll_launchers=lambda: [mine]))).launchers()
    assert found[0] is mine
    assert len(found) > 5
    assert [one.order for one in found] == sorted(one.order for one in found)


@pytest.mark.parametrize("hook", ["initialized", "shutdown"])
def test_npucoll_initialized_and_npucoll_shutdown(hook):
    seen = []
    with_argument = plugin(**{"npucoll_" + hook: lambda comm: seen.append(comm)})
    without = plugin(**{"npucoll_" + hook: lambda: seen.append("called")})
    hooks = manage(Point("a", with_argument), Point("b", without))
    getattr(hooks, hook)("the communicator")
    assert sorted(seen) == ["called", "the communicator"]


def test_npucoll_collective():
    seen = []
    observe = manage(Point("a", plugin(npucoll_collective=lambda event: seen.append(event)))).collective()
    observe(EVENT)
    assert seen == [EVENT]


def test_nobody_observes():
    assert manage(Point("a", modes("one"))).collective() is None


# -- plugins that go wrong


def broken_points():
    return [
        Point("absent", ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow.python")),
        Point("half", ModuleNotFoundError("No module named 'somewhere'", name="somewhere")),
        Point("stale", ImportError("cannot import name 'x' from 'npucoll'", name="npucoll")),
        Point("crash", RuntimeError("no licence")),
        Point("quits", SystemExit(3)),
        Point("good", modes("good")),
    ]


@pytest.mark.parametrize(
    ("name", "state", "text"),
    [
        ("absent", manager.ABSENT, "'tensorflow' is not installed"),
        ("half", manager.BROKEN, "No module named 'somewhere'; reinstall"),
        ("stale", manager.BROKEN, "cannot import name 'x'"),
        ("crash", manager.FAILED, "RuntimeError: no licence"),
        ("quits", manager.FAILED, "SystemExit: 3"),
    ],
)
def test_three_outcomes_and_the_others_go_on(name, state, text):
    hooks = manage(*broken_points())
    assert list(hooks.modes()) == ["good"]
    assert report(hooks, name).state == state
    assert text in report(hooks, name).text
    with pytest.raises(npucoll.PluginError, match=re.escape(text)) as caught:
        hooks.find_mode(name)
    assert repr(name) in str(caught.value)


def test_misspelt_hook_names_plugin_and_hook():
    hooks = manage(Point("wrong", plugin(npucoll_mode=lambda: [])), Point("good", modes("good")))
    assert report(hooks, "wrong").state == manager.BROKEN
    assert "unknown hook 'npucoll_mode'; did you mean 'npucoll_modes'?" in report(hooks, "wrong").describe()
    assert list(hooks.modes()) == ["good"]


def test_unknown_argument_of_a_hook_is_broken():
    hooks = manage(Point("wrong", plugin(npucoll_initialized=lambda communicator: None)))
    assert report(hooks, "wrong").state == manager.BROKEN
    hooks.initialized(None)


def test_plugin_without_hooks_is_broken():
    hooks = manage(Point("empty", types.ModuleType("empty")))
    assert "mark its functions with @npucoll.hookimpl" in report(hooks, "empty").text


def test_wrapper_is_refused():
    module = types.ModuleType("plugin")

    @npucoll.hookimpl(hookwrapper=True)
    def npucoll_shutdown(comm):
        yield

    module.npucoll_shutdown = npucoll_shutdown
    assert "is a wrapper" in report(manage(Point("wraps", module)), "wraps").text


def test_hook_under_another_name():
    module = types.ModuleType("plugin")
    module.offer = npucoll.hookimpl(specname="npucoll_modes")(lambda: [ModeProvider("one", "x", lambda: None)])
    assert list(manage(Point("named", module), Point("good", modes("good"))).modes()) == ["good", "one"]


def test_hook_that_raises_is_kept_and_the_others_go_on():
    def fail():
        raise ValueError("no table")

    hooks = manage(Point("bad", plugin(npucoll_modes=fail)), Point("good", modes("good")))
    assert list(hooks.modes()) == ["good"]
    with pytest.raises(npucoll.PluginError, match="npucoll_modes raised ValueError: no table"):
        hooks.find_mode("bad")


def test_hook_that_returns_something_else_is_broken():
    hooks = manage(Point("bad", plugin(npucoll_modes=lambda: ["keras"])), Point("good", modes("good")))
    assert list(hooks.modes()) == ["good"]
    assert "npucoll_modes returned 'keras', expected ModeProvider" in report(hooks, "bad").text


def test_observer_that_raises_is_warned_about_once():
    calls = []

    def fail(event):
        calls.append(event)
        raise ValueError("disk full")

    observe = manage(Point("bad", plugin(npucoll_collective=fail))).collective()
    with pytest.warns(RuntimeWarning, match="npucoll_collective of plugin 'bad' raised ValueError: disk full"):
        observe(EVENT)
    observe(EVENT)
    assert len(calls) == 1


def test_two_plugins_with_one_name_are_both_named():
    hooks = manage(Point("a", modes("same")), Point("b", modes("same")))
    with pytest.raises(
        npucoll.PluginError, match="'same' is offered by plugin 'a' and by 'b'|by plugin 'b' and by 'a'"
    ):
        hooks.modes()


def test_switched_off_plugin_is_not_loaded():
    hooks = manage(Point("off", RuntimeError("must not load")), Point("good", modes("good")), disabled=["off"])
    assert report(hooks, "off").state == manager.DISABLED
    assert hooks.troubles() == []
    with pytest.raises(npucoll.PluginError, match="'off' is switched off"):
        hooks.find_mode("off")


def test_unknown_mode_lists_the_known_and_how_to_install():
    hooks = manage(Point("good", modes("good")), Point("crash", RuntimeError("no licence")))
    with pytest.raises(npucoll.PluginError) as caught:
        hooks.find_mode("kears")
    text = str(caught.value)
    assert "no mode 'kears' is installed; installed modes: good" in text
    assert "did you mean 'keras'?" in text
    assert "pip install 'npucoll[keras]'" in text
    assert "no licence" in text
    with pytest.raises(npucoll.PluginError, match=r"did you mean 'good'\?"):
        hooks.find_mode("goood")


def test_installed_entry_points_are_listed_once():
    points = manager.entry_points()
    assert len({(one.name, one.value) for one in points}) == len(points)


# -- every hook has a test and a documented signature


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_has_a_test(hook):
    assert any(hook in name for name in globals() if name.startswith("test_npucoll_"))


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_has_a_method_on_the_manager(hook):
    method = getattr(manager.HookManager, hook[len("npucoll_") :])
    assert method.__doc__
    assert "return" in method.__annotations__


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_has_a_documented_signature(hook):
    function = getattr(spec, hook)
    assert function.__doc__
    parameters = ", ".join(
        f"{name}: {parameter.annotation}" for name, parameter in inspect.signature(function).parameters.items()
    )
    signature = f"{hook}({parameters}) -> {function.__annotations__['return']}"
    assert signature in REFERENCE.read_text(encoding="utf-8"), f"docs/reference/hooks.md lacks `{signature}`"


@pytest.mark.parametrize("record", [CollectiveEvent, EngineProvider, LauncherProvider, ModeProvider])
def test_every_field_of_a_record_is_documented(record):
    text = REFERENCE.read_text(encoding="utf-8")
    section = text[text.index(f"### {record.__name__}") :].split("\n### ")[0]
    for field in record._fields:
        assert f"`{field}`" in section, f"docs/reference/hooks.md does not explain {record.__name__}.{field}"
