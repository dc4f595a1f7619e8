"""``TF_CONFIG``: TensorFlow's description of a cluster. Ranks are the chief, then the workers."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping, Optional, Tuple

from npucoll.bootstrap.identity import Identity, place
from npucoll.bootstrap.variables import text
from npucoll.errors import ConfigError

__all__ = ["detect"]

_CHIEFS = ("chief", "master")


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``TF_CONFIG``, or None where it is unset or names no cluster.

    An evaluator takes no part in training: it is one rank of its own.

    Raises:
        ConfigError: it is not JSON, has parameter servers, or the task is none of the cluster.
    """
    value = text(env, "TF_CONFIG")
    if value is None:
        return None
    try:
        content = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"TF_CONFIG is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError("TF_CONFIG is not a JSON object")
    cluster = _cluster(content)
    if not cluster:
        return None
    kind, index = _task(content)
    tasks = _ranks(cluster)
    digest = hashlib.blake2b(json.dumps(cluster, sort_keys=True).encode(), digest_size=12).hexdigest()
    detail = f"TF_CONFIG: {kind} {index} of {', '.join(f'{len(cluster[k])} {k}' for k in sorted(cluster))}"
    if kind == "evaluator":
        return Identity.on_one_host(0, 1, job=f"tf-config:{digest}:evaluator", source="TF_CONFIG", detail=detail)
    if (kind, index) not in tasks:
        raise ConfigError(f"TF_CONFIG's task is {kind} {index}, which its cluster does not list")
    rank = tasks.index((kind, index))
    hosts = [_host(cluster[k][i]) for k, i in tasks]
    return Identity(rank, len(tasks), *place(rank, hosts), job=f"tf-config:{digest}", source="TF_CONFIG", detail=detail)


def _cluster(content: Mapping[str, Any]) -> Dict[str, List[str]]:
    cluster = content.get("cluster") or {}
    if not isinstance(cluster, dict):
        raise ConfigError("TF_CONFIG's cluster is not an object")
    lists: Dict[str, List[str]] = {}
    for kind, addresses in cluster.items():
        if isinstance(addresses, dict):
            addresses = [addresses[key] for key in sorted(addresses, key=int)]
        if not isinstance(addresses, list):
            raise ConfigError(f"TF_CONFIG's cluster lists no addresses for {kind!r}")
        if addresses:
            lists[kind] = [str(address) for address in addresses]
    if "ps" in lists:
        raise ConfigError(
            "TF_CONFIG has parameter servers ('ps'); npucoll trains without them: list every process as a worker"
        )
    return lists


def _task(content: Mapping[str, Any]) -> Tuple[str, int]:
    task = content.get("task")
    if not isinstance(task, dict) or "type" not in task:
        raise ConfigError("TF_CONFIG has a cluster, but no task that says which of it this process is")
    try:
        return str(task["type"]), int(task.get("index", 0))
    except (TypeError, ValueError):
        raise ConfigError(f"TF_CONFIG's task index {task.get('index')!r} is not a number") from None


def _ranks(cluster: Mapping[str, List[str]]) -> List[Tuple[str, int]]:
    return [(kind, i) for kind in (*_CHIEFS, "worker") for i in range(len(cluster.get(kind, [])))]


def _host(address: str) -> str:
    host = address.rsplit(":", 1)[0] if ":" in address else address
    return "localhost" if host in ("127.0.0.1", "[::1]", "") else host
