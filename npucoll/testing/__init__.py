"""For tests: run a function or a script as several ranks, with a deadline, and learn what went wrong where."""

from __future__ import annotations

from npucoll.testing.kept import KeptRanks
from npucoll.testing.ranks import Died, RankFailed, RankHang, RankPool, run_ranks
from npucoll.testing.script import Outcome, run_script

__all__ = ["Died", "KeptRanks", "Outcome", "RankFailed", "RankHang", "RankPool", "run_ranks", "run_script"]
