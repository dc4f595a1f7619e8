"""Rank processes that stay from test to test, for frameworks that take longer to import than a test to run."""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Optional, Tuple

from npucoll.testing.ranks import RankPool

__all__ = ["KeptRanks"]


class KeptRanks:
    """Runs functions as ranks; the processes are kept until other ones are asked for. A context manager.

    Sort the tests by what they ask for, so that each set of processes starts once.
    """

    def __init__(self) -> None:
        self._pool: Optional[RankPool] = None
        self._kind: Optional[Tuple[Any, ...]] = None

    def run(
        self,
        function: Callable[..., Any],
        n: int,
        *args: Any,
        timeout: float = 60,
        env: Optional[Mapping[str, Optional[str]]] = None,
        kind: Any = None,
    ) -> List[Any]:
        """Call ``function(*args)`` on ``n`` ranks, as ``run_ranks`` does.

        The processes are those of the call before if ``n``, ``env`` and ``kind`` (anything else that processes cannot
        share) are the same.
        """
        wanted = (n, dict(env or {}), kind)
        if wanted != self._kind or self._pool is None:
            self.close()
            self._pool, self._kind = RankPool(n, env=env), wanted
        return self._pool.run(function, *args, timeout=timeout)

    def close(self) -> None:
        """End the processes."""
        pool, self._pool, self._kind = self._pool, None, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> KeptRanks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
