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
    """Calls a function on n ranks for one kind of Keras; the processes are kept while both stay the same."""

    def __init__(self):
        self._pool, self._key = None, None

    def __call__(self, n, kind, function, *args, timeout=300):
        # TensorFlow 1.15 is eager in a process or is not.
        key = (n, kind == "eager")
        if key != self._key:
            self.close()
            from npucoll.testing import RankPool

            self._pool, self._key = RankPool(n, env=FEW_THREADS), key
        return self._pool.run(function, kind, *args, timeout=timeout)

    def close(self):
        if self._pool is not None:
            self._pool.close()
        self._pool, self._key = None, None


@pytest.fixture(scope="session")
def ranks():
    pools = Ranks()
    yield pools
    pools.close()


def pytest_collection_modifyitems(items):
    """Bring those together that use the same processes, so that each set of them starts once."""

    def processes(item):
        arguments = item.callspec.params if hasattr(item, "callspec") else {}
        return arguments.get("n", 2), arguments.get("kind") == "eager"

    items.sort(key=processes)
