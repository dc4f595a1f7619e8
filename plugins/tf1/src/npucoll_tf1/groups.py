"""Ranks and groups under the names of the device's own management API. Every failure is a ValueError.

A group is a name for a communicator. Different groups may carry the same name on different ranks, so that every rank
can have, say, its own "DATA_PARALLEL_GROUP": what identifies a group is its name together with its members.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import npucoll
from npucoll.errors import ConfigError, NotInitialized, NpucollError

__all__ = [
    "WORLD",
    "communicator_of",
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_rank_id",
    "get_rank_size",
    "get_world_rank_from_group_rank",
]

#: The name of the group of all ranks.
WORLD = "hccl_world_group"

LONGEST_NAME = 127


class Groups:
    """The groups that this process has created, by name. They go with the communicator they were made from."""

    def __init__(self) -> None:
        self._world: Optional[npucoll.Communicator] = None
        self._groups: Dict[str, Tuple[npucoll.Communicator, List[int]]] = {}

    def create(self, name: str, ranks: List[int]) -> None:
        """Make the group ``name`` of ``ranks``, of which this process is one."""
        world = self._current()
        if name in self._groups:
            raise ConfigError(
                f"group {name!r} exists already, with ranks {self._groups[name][1]}; destroy_group it first"
            )
        comm = world.group(ranks, name)
        if comm is None:
            raise ConfigError(
                f"rank {world.rank} is not a member of group {name!r} {ranks}; only members create a group"
            )
        self._groups[name] = (comm, sorted(ranks))

    def destroy(self, name: str) -> None:
        """Close the group ``name``."""
        self.find(name)[0].close()
        del self._groups[name]

    def find(self, name: str) -> Tuple[npucoll.Communicator, List[int]]:
        """Return the communicator of the group ``name``, and its members' numbers among all ranks, sorted."""
        self._current()
        if name not in self._groups:
            known = ", ".join(repr(one) for one in [WORLD, *sorted(self._groups)])
            raise ConfigError(f"no group {name!r} on rank {npucoll.rank()}; known groups: {known}")
        return self._groups[name]

    def _current(self) -> npucoll.Communicator:
        """Return the communicator of all ranks, and forget groups that belong to an earlier one."""
        try:
            world = npucoll.communicator()
        except NotInitialized as error:
            raise ConfigError(f"groups need the other ranks: {error}") from error
        if world is not self._world:
            self._world, self._groups = world, {}
        return world


# As there is one communicator of all ranks in a process, there is one set of names.
_groups = Groups()


def create_group(group: str, rank_num: int, rank_ids: Sequence[int]) -> None:
    """Create the group ``group`` of the ``rank_num`` ranks ``rank_ids``; only its members call this.

    ``group``: 1 to 127 characters. A member's rank in the group is its position among the sorted ``rank_ids``.
    """
    _check_new_name(group)
    ranks = _integers("rank_ids", rank_ids)
    if rank_num != len(ranks):
        raise ConfigError(f"group {group!r}: rank_num is {rank_num}, but rank_ids has {len(ranks)}: {ranks}")
    if len(set(ranks)) != len(ranks):
        raise ConfigError(f"group {group!r}: rank_ids repeats a rank: {ranks}")
    if not ranks or min(ranks) < 0 or max(ranks) >= npucoll.size():
        raise ConfigError(f"group {group!r}: rank_ids must be from 0 to {npucoll.size() - 1}, found {ranks}")
    try:
        _groups.create(group, ranks)
    except NpucollError as error:
        if isinstance(error, ValueError):
            raise
        raise ConfigError(f"group {group!r} of ranks {ranks} could not be created: {error}") from error


def destroy_group(group: str) -> None:
    """Forget the group ``group``, and free what it holds on this rank."""
    if _is_world(group):
        raise ConfigError(f"{WORLD!r} is the group of all ranks and cannot be destroyed; npucoll.shutdown() leaves it")
    _groups.destroy(group)


def get_rank_size(group: str = WORLD) -> int:
    """Return the number of ranks in ``group``. For all ranks it is known before ``init``."""
    return npucoll.size() if _is_world(group) else _groups.find(group)[0].size


def get_rank_id(group: str = WORLD) -> int:
    """Return this process's rank in ``group``. Among all ranks it is known before ``init``."""
    return npucoll.rank() if _is_world(group) else _groups.find(group)[0].rank


def get_local_rank_size(group: str = WORLD) -> int:
    """Return the number of ranks of ``group`` on this host."""
    return npucoll.local_size() if _is_world(group) else _groups.find(group)[0].local_size


def get_local_rank_id(group: str = WORLD) -> int:
    """Return this process's number among the ranks of ``group`` on this host."""
    return npucoll.local_rank() if _is_world(group) else _groups.find(group)[0].local_rank


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """Return the rank among all of the process that has rank ``group_rank_id`` in ``group``."""
    members = _members(group)
    (rank,) = _integers("group_rank_id", [group_rank_id])
    if not 0 <= rank < len(members):
        raise ConfigError(f"group {group!r} has ranks 0 to {len(members) - 1}, found {group_rank_id}")
    return members[rank]


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """Return the rank in ``group`` of the process that has rank ``world_rank_id`` among all."""
    members = _members(group)
    (rank,) = _integers("world_rank_id", [world_rank_id])
    if rank not in members:
        raise ConfigError(f"rank {world_rank_id} is not a member of group {group!r}, which has ranks {members}")
    return members.index(rank)


def communicator_of(group: Optional[str]) -> Optional[npucoll.Communicator]:
    """Return what npucoll_tensorflow takes as a group: None for all ranks, else the communicator of ``group``."""
    return None if group is None or _is_world(group) else _groups.find(group)[0]


def _members(group: str) -> List[int]:
    return list(range(npucoll.size())) if _is_world(group) else list(_groups.find(group)[1])


def _is_world(group: object) -> bool:
    if not isinstance(group, str):
        raise ConfigError(f"a group is given by its name, found {group!r}")
    return group == WORLD


def _check_new_name(group: str) -> None:
    if _is_world(group):
        raise ConfigError(f"{WORLD!r} is the group of all ranks and exists already")
    if not 1 <= len(group) <= LONGEST_NAME:
        raise ConfigError(f"a group's name has 1 to {LONGEST_NAME} characters, found {len(group)}")


def _integers(what: str, values: Sequence[int]) -> List[int]:
    try:
        # NumPy's integers are welcome, True and 1.0 are not.
        if any(isinstance(value, bool) or int(value) != value or isinstance(value, float) for value in values):
            raise TypeError
        return [int(value) for value in values]
    except (TypeError, ValueError):
        raise ConfigError(f"{what} takes whole numbers, found {values!r}") from None
