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


class Ranks:
    """Calls a function on n ranks; the processes of one n are kept until another n is asked for."""

    def __init__(self):
        self._pool, self._size = None, 0

    def __call__(self, n, function, *args, timeout=120):
        if n != self._size:
            self.close()
            from npucoll.testing import RankPool

            self._pool, self._size = RankPool(n, env=FEW_THREADS), n
        return self._pool.run(function, *args, timeout=timeout)

    def close(self):
        if self._pool is not None:
            self._pool.close()
        self._pool, self._size = None, 0


@pytest.fixture(scope="session")
def ranks():
    pools = Ranks()
    yield pools
    pools.close()


def pytest_collection_modifyitems(items):
    """Run the tests of 2 ranks before those of 4, so that each set of processes starts once."""
    items.sort(key=lambda item: "4 ranks" in item.name)
