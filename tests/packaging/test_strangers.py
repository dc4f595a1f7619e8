"""Plugins by others: a good one, enabled by a configuration file, and broken ones that stop nobody else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

STRANGER = Path(__file__).resolve().parent / "stranger_plugin"

USE = """
import npucoll

(mode,) = npucoll.enable()
comm = npucoll.communicator()
assert npucoll.enable("stranger") is mode
assert comm.engine.name == "sockets", comm.engine.name
assert mode.average([npucoll.rank(), 10]) == [0.5, 10.0]
assert comm.broadcast([npucoll.rank() + 5], root=1).tolist() == [6]
comm.barrier()
try:
    comm.allreduce([1.0] * (npucoll.rank() + 1))
except npucoll.MismatchError as error:
    assert "rank 1" in str(error), error
else:
    raise AssertionError("no MismatchError")
seen = mode.observed
assert seen[0] == ("initialized", 2), seen
assert [kind for kind, _ in seen[1:]] == ["allreduce", "broadcast", "barrier", "allreduce"], seen
print("all is well")
"""


@pytest.fixture
def stranger(bare, tmp_path):
    source = tmp_path / "stranger_plugin"
    shutil.copytree(STRANGER, source)
    bare.pip("install", "--no-deps", str(source))
    return bare


def test_plugin_of_a_stranger_enabled_by_a_file(stranger, tmp_path):
    (tmp_path / "npucoll.toml").write_text('modes = ["stranger"]\nengine = "sockets"\n')
    script = tmp_path / "use.py"
    script.write_text(USE)
    done = stranger.npucoll("run", "-n", "2", str(script), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all is well") == 2
    listed = json.loads(stranger.npucoll("plugins", "--json", cwd=tmp_path).stdout)
    (plugin,) = [one for one in listed["plugins"] if one["name"] == "stranger"]
    assert plugin["distribution"] == "npucoll-stranger 1.0"
    assert plugin["hooks"] == ["npucoll_collective", "npucoll_engines", "npucoll_initialized", "npucoll_modes"]


def test_plugin_switched_off_by_a_file(stranger, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.npucoll]\ndisable = ["stranger"]\n')
    done = stranger.python("import npucoll; npucoll.enable('stranger')", tmp_path)
    assert done.returncode == 1
    assert "mode 'stranger' is switched off" in done.stderr


def test_broken_plugins_stop_nobody_else(bare, tmp_path):
    hook = "import npucoll\n@npucoll.hookimpl\ndef npucoll_{}():\n    return []\n"
    bare.add_distribution("crashing", "raise RuntimeError('no licence')", "crashing = crashing")
    bare.add_distribution("misspelt", hook.format("mode"), "misspelt = misspelt")
    bare.add_distribution("needing", "import a_framework_that_is_not_here", "needing = needing")
    bare.add_distribution("halved", "", "halved = halved.plugin")
    listed = bare.npucoll("plugins", "--json", cwd=tmp_path)
    assert listed.returncode == 1, listed.stderr
    report = json.loads(listed.stdout)
    states = {one["name"]: (one["state"], one["detail"]) for one in report["plugins"]}
    assert states["crashing"] == ("failed", "RuntimeError: no licence")
    assert states["needing"][0] == "needs a package"
    assert "a_framework_that_is_not_here" in states["needing"][1]
    assert states["halved"][0] == "broken"
    assert states["misspelt"][0] == "broken"
    assert "'npucoll_mode'; did you mean 'npucoll_modes'?" in states["misspelt"][1]
    assert states["keras"][0] == "loaded"
    assert {mode["name"] for mode in report["modes"]} >= {"keras", "tf1", "estimator"}
    done = bare.python("import npucoll; print(npucoll.init().size); npucoll.enable('crashing')", tmp_path)
    assert done.stdout.strip() == "1"
    assert "plugin 'crashing' of crashing 1.0 (crashing) failed: RuntimeError: no licence" in done.stderr
