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
    """Call ``ranks(n, function, *args)``: the processes of one n are kept until another n is asked for."""
    from npucoll.testing import KeptRanks

    with KeptRanks() as kept:
        yield lambda n, function, *args, timeout=120: kept.run(function, n, *args, timeout=timeout, env=FEW_THREADS)


def pytest_collection_modifyitems(items):
    """Run the tests of 2 ranks before those of 4, so that each set of processes starts once."""
    items.sort(key=lambda item: "4 ranks" in item.name)
