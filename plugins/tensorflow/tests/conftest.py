"""Ranks that stay for all tests of this directory, since importing TensorFlow takes longer than most of them."""

from __future__ import annotations

import importlib.util
import os
import re
import warnings

import pytest

# Without TensorFlow there is nothing to test here.
collect_ignore_glob = []
if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob.append("test_*.py")
else:
    with warnings.catch_warnings():
        # What TensorFlow warns about while it is imported is its own.
        warnings.simplefilter("ignore")
        import tensorflow  # noqa: F401 - imported once, here

# Several ranks share few cores; one thread between operators is where collectives in different orders deadlock.
ONE_THREAD = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
DEFAULT_THREADS = dict(ONE_THREAD, TF_NUM_INTRAOP_THREADS=None, TF_NUM_INTEROP_THREADS=None, OMP_NUM_THREADS=None)


@pytest.fixture(scope="session")
def ranks():
    """Call ``ranks(n, function, *args, threads="one")``: processes of one kind are kept until others are asked for."""
    from npucoll.testing import KeptRanks

    with KeptRanks() as kept:

        def run(n, function, *args, timeout=120, threads="one"):
            env = ONE_THREAD if threads == "one" else DEFAULT_THREADS
            return kept.run(function, n, *args, timeout=timeout, env=env)

        yield run


@pytest.fixture(scope="session")
def steps():
    """How many steps of a test that looks for rare orders: 100, or what NPUCOLL_SOAK_STEPS says."""
    return int(os.environ.get("NPUCOLL_SOAK_STEPS", "100"))


def pytest_collection_modifyitems(items):
    """Run the tests of one kind of ranks together, so that each set of processes starts once."""

    def kind(item):
        found = re.search(r"(\d) ranks?", item.name)
        return "default threads" in item.name, int(found.group(1)) if found else 2

    items.sort(key=kind)
