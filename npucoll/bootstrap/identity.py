"""Who this process is among the ranks of its job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Hashable, List, Sequence, Tuple

from npucoll.errors import ConfigError

__all__ = ["Identity", "place", "place_evenly"]


@dataclass(frozen=True)
class Identity:
    """The place of one process in its job.

    Attributes:
        rank: 0 … size-1, unique in the job.
        size: the number of ranks.
        local_rank: the place among the ranks of this host.
        local_size: the number of ranks on this host.
        node_rank: the number of this host, 0 … node_count-1.
        node_count: the number of hosts.
        job: what the ranks of one job have in common and other jobs have not; part of the names they meet under.
        source: the launcher format that said so, for example ``"rank table"``.
        detail: one sentence for people: which variables or file.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    node_count: int
    job: str
    source: str
    detail: str

    def __post_init__(self) -> None:
        for name, value, limit_name, limit in (
            ("rank", self.rank, "size", self.size),
            ("local rank", self.local_rank, "local size", self.local_size),
            ("node rank", self.node_rank, "number of nodes", self.node_count),
        ):
            if limit < 1:
                raise ConfigError(f"{self.source}: the {limit_name} is {limit}; it must be at least 1 ({self.detail})")
            if not 0 <= value < limit:
                raise ConfigError(
                    f"{self.source}: {name} {value} does not exist: the {limit_name} is {limit}, "
                    f"so it must be 0 to {limit - 1} ({self.detail})"
                )
        if self.local_size > self.size or self.node_count > self.size:
            raise ConfigError(
                f"{self.source}: {self.local_size} ranks on this host and {self.node_count} hosts do not fit "
                f"a size of {self.size} ({self.detail})"
            )
        if self.node_count == 1 and (self.local_size != self.size or self.local_rank != self.rank):
            raise ConfigError(
                f"{self.source}: on a single host the local rank and size are the rank and size, but they are "
                f"{self.local_rank} of {self.local_size} and {self.rank} of {self.size} ({self.detail})"
            )

    @classmethod
    def on_one_host(cls, rank: int, size: int, *, job: str, source: str, detail: str) -> Identity:
        """Return the identity of a rank whose peers are all on this host."""
        return cls(rank, size, rank, size, 0, 1, job, source, detail)


def place(rank: int, hosts: Sequence[Hashable]) -> Tuple[int, int, int, int]:
    """Return (local rank, local size, node rank, node count) of ``rank``, given the host of every rank.

    Hosts are numbered in the order of their first rank.
    """
    order: List[Hashable] = []
    for host in hosts:
        if host not in order:
            order.append(host)
    mine = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    return mine.index(rank), len(mine), order.index(hosts[rank]), len(order)


def place_evenly(rank: int, size: int, local_rank: int, local_size: int) -> Tuple[int, int, int, int]:
    """Return what ``place`` does where a launcher tells only the local rank and size: hosts are filled evenly."""
    if local_size >= size:
        return local_rank, local_size, 0, 1
    count = -(-size // max(local_size, 1))
    return local_rank, local_size, min(rank // max(local_size, 1), count - 1), count
