"""Ranks that stay for all tests of this directory, since importing TensorFlow takes longer than most of them."""

from __future__ import annotations

import importlib.util

import pytest

# Without TensorFlow there is nothing to test here.
collect_ignore_glob = [] if importlib.util.find_spec("tensorflow") else ["test_*.py"]

# Several ranks share few cores.
FEW_THREADS = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}


@pytest.fixture(scope="session")
def ranks():
    """Call ``ranks(n, kind, function, *args)`` for a kind of Keras; TensorFlow 1.15 is eager in a process or is not."""
    from npucoll.testing import KeptRanks

    with KeptRanks() as kept:

        def run(n, kind, function, *args, timeout=300):
            return kept.run(function, n, kind, *args, timeout=timeout, env=FEW_THREADS, kind=kind == "eager")

        yield run


def pytest_collection_modifyitems(items):
    """Bring those together that use the same processes, so that each set of them starts once."""

    def processes(item):
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        return arguments.get("n", 2), arguments.get("kind") == "eager"

    items.sort(key=processes)
