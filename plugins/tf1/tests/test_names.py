"""The public names, and what the plugin says before TensorFlow is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = [
    "npu_distributed_optimizer_wrapper",
    "NPUDistributedOptimizer",
    "npu_allreduce",
    "broadcast_global_variables",
    "NPUBroadcastGlobalVariablesHook",
    "allreduce",
    "broadcast",
    "allgather",
    "reduce",
    "reduce_scatter",
    "alltoall",
    "get_rank_size",
    "get_rank_id",
    "get_local_rank_size",
    "get_local_rank_id",
    "create_group",
    "destroy_group",
]


def test_listing_the_plugin_imports_no_framework():
    code = (
        "import sys, npucoll_tf1, npucoll_tf1.plugin as plugin\n"
        "(mode,) = plugin.npucoll_modes()\n"
        "same = sorted(npucoll_tf1.__all__) == dir(npucoll_tf1)\n"
        "print(mode.name, mode.unavailable(), same, 'tensorflow' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, check=True).stdout.decode()
    assert said.split() == ["tf1", "None", "True", "False"]


def test_the_public_names_are_there():
    import npucoll_tf1

    assert set(NAMES) <= set(npucoll_tf1.__all__)
    with pytest.raises(AttributeError, match="'npu_allreduc'"):
        npucoll_tf1.npu_allreduc  # noqa: B018 - the look itself is the test


def test_what_it_says_about_other_tensorflows(monkeypatch):
    from npucoll_tf1 import plugin

    for version, words in ((None, "not installed; pip install"), ("1.13.1", "too old"), ("0.12", "too old")):
        monkeypatch.setattr(plugin, "tensorflow_version", lambda version=version: version)
        assert words in plugin._unavailable()
    for version in ("1.15.5", "2.4.1", "2.21.0", ""):
        monkeypatch.setattr(plugin, "tensorflow_version", lambda version=version: version)
        assert plugin._unavailable() is None


def test_ranks_answer_before_init(monkeypatch):
    code = "import npucoll_tf1 as npu; print(npu.get_rank_id(), npu.get_rank_size(), npu.get_local_rank_id())"
    env = {"PATH": "", "RANK_ID": "1", "RANK_SIZE": "2"}
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, env=env, check=True).stdout
    assert said.decode().split() == ["1", "2", "1"]
    code = "import npucoll_tf1 as npu; npu.create_group('g', 1, [0])"
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=60)
    assert ended.returncode == 1 and b"groups need the other ranks" in ended.stderr
