"""What the plugin says about the TensorFlow that is installed, without importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

NAMES = [
    "NPURunConfig",
    "NPUEstimator",
    "NPUEstimatorSpec",
    "NPUBroadcastGlobalVariablesHook",
    "npu_distributed_optimizer_wrapper",
    "NPUDistributedOptimizer",
    "npu_allreduce",
    "get_rank_size",
    "get_rank_id",
    "get_local_rank_size",
    "get_local_rank_id",
]


def test_listing_the_plugin_imports_no_framework():
    code = (
        "import sys, npucoll_estimator, npucoll_estimator.plugin as plugin\n"
        "(mode,) = plugin.npucoll_modes()\n"
        "mode.unavailable()\n"
        "print(mode.name, 'tensorflow' in sys.modules, sorted(npucoll_estimator.__all__) == dir(npucoll_estimator))"
    )
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, check=True).stdout.decode()
    assert said.split() == ["estimator", "False", "True"]


def test_the_public_names_are_there():
    import npucoll_estimator

    assert set(NAMES) <= set(npucoll_estimator.__all__)
    with pytest.raises(AttributeError, match="'NPUEstimato'"):
        npucoll_estimator.NPUEstimato  # noqa: B018 - the look itself is the test


def test_what_it_says_about_other_tensorflows(monkeypatch):
    from npucoll_estimator import plugin

    monkeypatch.setattr(plugin.importlib.util, "find_spec", lambda name: object())
    for version, words in (
        (None, "not installed; pip install"),
        ("1.14.0", "1.15 and 2.0 to 2.15"),
        ("2.16.1", "TensorFlow 2.16.1 has no Estimator; versions 1.15 and 2.0 to 2.15 have it"),
        ("3.0.0-rc1", "has no Estimator"),
    ):
        monkeypatch.setattr(plugin, "tensorflow_version", lambda version=version: version)
        assert words in plugin._unavailable()
    for version in ("1.15.5", "2.0.0", "2.15.1", ""):
        monkeypatch.setattr(plugin, "tensorflow_version", lambda version=version: version)
        assert plugin._unavailable() is None
    monkeypatch.setattr(plugin.importlib.util, "find_spec", lambda name: None)
    assert "without its package tensorflow-estimator" in plugin._unavailable()
