"""Rank tables: ``RANK_TABLE_FILE`` and ``RANK_ID``; version 1.0 and the older one with groups."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, List, Mapping, NamedTuple, Optional

from npucoll.bootstrap.identity import Identity, place
from npucoll.bootstrap.variables import integer, text
from npucoll.errors import ConfigError

__all__ = ["RankTable", "detect", "parse"]


class RankTable(NamedTuple):
    """What a rank table says: for every rank its server, its device, and the pod (None in version 1.0)."""

    servers: List[str]
    devices: List[str]
    pods: List[Optional[str]]
    digest: str


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity that the rank table gives to ``RANK_ID`` (older tables: to ``POD_NAME``).

    None where ``RANK_TABLE_FILE`` is unset, where nothing says which entry is ours, and where the file does not
    exist while ``RANK_SIZE=1`` (scripts for one device leave the variable behind).

    Raises:
        ConfigError: the file is unreadable or malformed, or contradicts ``RANK_ID`` or ``RANK_SIZE``.
    """
    path = text(env, "RANK_TABLE_FILE")
    if path is None or (text(env, "RANK_ID") is None and text(env, "POD_NAME") is None):
        return None
    size = integer(env, "RANK_SIZE", 1)
    if size == 1 and not os.path.exists(path):
        return None
    table = read(path)
    if size is not None and size != len(table.servers):
        raise ConfigError(f"RANK_SIZE={size}, but the rank table {path} lists {len(table.servers)} ranks")
    rank = _find(table, env, path)
    job = text(env, "JOB_ID")
    return Identity(
        rank,
        len(table.servers),
        *place(rank, table.servers),
        job=f"rank-table:{job or ''}:{table.digest}",
        source="rank table",
        detail=f"RANK_TABLE_FILE={path} gives rank {rank} device {table.devices[rank]} of server {table.servers[rank]}",
    )


def read(path: str) -> RankTable:
    """Read and check the rank table at ``path``.

    Raises:
        ConfigError: it cannot be read, is not JSON, or is malformed.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise ConfigError(f"the rank table {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the rank table {path} is not JSON: {error}") from error
    try:
        return parse(content)
    except ConfigError as error:
        raise ConfigError(f"the rank table {path} is malformed: {error}") from None


def parse(content: Any) -> RankTable:
    """Return what a decoded rank table says.

    Raises:
        ConfigError: a key is missing, a count is wrong, ranks are not 0 … n-1, or those of two servers interleave.
    """
    if not isinstance(content, dict):
        raise ConfigError("it is not a JSON object")
    status = content.get("status", "completed")
    if status != "completed":
        raise ConfigError(f"its status is {status!r}, not 'completed': whoever writes it has not finished")
    if "server_list" in content:
        table = _parse_servers(content)
    elif "group_list" in content:
        table = _parse_groups(content)
    else:
        raise ConfigError("it has neither a server_list nor a group_list")
    if not table.servers:
        raise ConfigError("it lists no devices")
    runs = [server for i, server in enumerate(table.servers) if i == 0 or table.servers[i - 1] != server]
    for server in runs:
        if runs.count(server) > 1:
            raise ConfigError(f"the ranks of server {server} are not consecutive")
    return table


def _parse_servers(content: Mapping[str, Any]) -> RankTable:
    entries = {}
    servers = _list(content, "server_list")
    _check_count(content, "server_count", len(servers), "server_list")
    for server in servers:
        name = str(_key(server, "server_id"))
        for device in _list(server, "device"):
            rank = _number(device, "rank_id")
            if rank in entries:
                raise ConfigError(f"rank_id {rank} occurs twice")
            entries[rank] = (name, str(_key(device, "device_id")))
    for rank in range(len(entries)):
        if rank not in entries:
            raise ConfigError(f"rank_id {rank} is missing: {len(entries)} devices must have 0 to {len(entries) - 1}")
    ordered = [entries[rank] for rank in range(len(entries))]
    return RankTable([e[0] for e in ordered], [e[1] for e in ordered], [None] * len(ordered), _digest(content))


def _parse_groups(content: Mapping[str, Any]) -> RankTable:
    names: List[str] = []
    devices: List[str] = []
    pods: List[Optional[str]] = []
    groups = _list(content, "group_list")
    _check_count(content, "group_count", len(groups), "group_list")
    for group in groups:
        before = len(names)
        instances = _list(group, "instance_list")
        _check_count(group, "instance_count", len(instances), "instance_list")
        for instance in instances:
            for device in _list(instance, "devices"):
                names.append(str(_key(instance, "server_id")))
                devices.append(str(_key(device, "device_id")))
                pods.append(None if instance.get("pod_name") is None else str(instance["pod_name"]))
        _check_count(group, "device_count", len(names) - before, "instance_list")
    return RankTable(names, devices, pods, _digest(content))


def _find(table: RankTable, env: Mapping[str, str], path: str) -> int:
    given = text(env, "RANK_ID")
    if given is not None and given.isdigit():
        if int(given) >= len(table.servers):
            raise ConfigError(f"RANK_ID={given}, but the rank table {path} lists {len(table.servers)} ranks only")
        return int(given)
    name = given if given in table.pods else text(env, "POD_NAME")
    mine = [rank for rank, pod in enumerate(table.pods) if pod is not None and pod == name]
    if len(mine) > 1:
        device = text(env, "ASCEND_DEVICE_ID") or text(env, "DEVICE_ID")
        mine = [rank for rank in mine if table.devices[rank] == device]
    if len(mine) != 1:
        raise ConfigError(
            f"the rank table {path} does not say which rank this process is: RANK_ID={given or ''!r}, "
            f"POD_NAME={env.get('POD_NAME', '')!r}; set RANK_ID to 0 … {len(table.servers) - 1}"
        )
    return mine[0]


def _digest(content: Any) -> str:
    # Every host may hold its own copy, laid out by another tool: only the content counts.
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=12).hexdigest()


def _key(entry: Any, name: str) -> Any:
    if not isinstance(entry, dict) or name not in entry:
        raise ConfigError(f"an entry lacks {name!r}")
    return entry[name]


def _list(entry: Any, name: str) -> List[Any]:
    value = _key(entry, name)
    if not isinstance(value, list):
        raise ConfigError(f"{name} is not a list")
    return value


def _number(entry: Any, name: str) -> int:
    value = str(_key(entry, name))
    if not value.isdigit():
        raise ConfigError(f"{name} {value!r} is not a number")
    return int(value)


def _check_count(entry: Mapping[str, Any], name: str, found: int, where: str) -> None:
    if name in entry and _number(entry, name) != found:
        raise ConfigError(f"{name} is {entry[name]}, but {where} has {found}")
