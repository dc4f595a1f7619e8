"""``CM_*``: the adapter's way without a rank table, where a chief hands out the ranks. One host only."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.variables import integer, required, text
from npucoll.errors import ConfigError

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``CM_*``: the rank is the device number, counted from the chief's.

    None where ``CM_CHIEF_IP`` is unset.

    Raises:
        ConfigError: a companion is missing, the workers are on several hosts, or ``RANK_*`` variables are set too.
    """
    chief = text(env, "CM_CHIEF_IP")
    if chief is None:
        return None
    for name in ("RANK_TABLE_FILE", "RANK_ID", "RANK_SIZE"):
        if text(env, name) is not None:
            raise ConfigError(f"CM_CHIEF_IP={chief} and {name}={env[name]} are both set: keep one of the two ways")
    size = required(env, "CM_WORKER_SIZE", 1, beside="CM_CHIEF_IP")
    port = required(env, "CM_CHIEF_PORT", 1, beside="CM_CHIEF_IP")
    first = required(env, "CM_CHIEF_DEVICE", beside="CM_CHIEF_IP")
    worker = text(env, "CM_WORKER_IP") or chief
    if worker != chief:
        raise ConfigError(
            f"CM_WORKER_IP={worker} and CM_CHIEF_IP={chief} are two hosts: CM_* does not say which rank this is there; "
            "use a rank table"
        )
    device = integer(env, "ASCEND_DEVICE_ID")
    if device is None:
        device = required(env, "DEVICE_ID", beside="CM_CHIEF_IP")
    if not first <= device < first + size:
        raise ConfigError(
            f"device {device} is none of the {size} devices from CM_CHIEF_DEVICE={first} on, so its rank is unknown: "
            "use a rank table"
        )
    detail = f"CM_CHIEF_IP={chief} CM_CHIEF_PORT={port} CM_CHIEF_DEVICE={first} CM_WORKER_SIZE={size} device {device}"
    return Identity.on_one_host(device - first, size, job=f"cm:{chief}:{port}:{first}", source="CM_*", detail=detail)
