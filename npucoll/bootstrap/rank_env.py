"""``RANK_ID`` and ``RANK_SIZE``, as shell loops export them, without a rank table."""

from __future__ import annotations

from typing import Mapping, Optional

from npucoll.bootstrap.identity import Identity
from npucoll.bootstrap.variables import integer, required, text
from npucoll.errors import ConfigError

__all__ = ["detect"]


def detect(env: Mapping[str, str]) -> Optional[Identity]:
    """Return the identity from ``RANK_ID`` and ``RANK_SIZE``, or None where either is unset.

    All ranks are taken to be on this host: nothing in these variables says otherwise. With ``RANK_SIZE=1`` the
    rank is 0 whatever ``RANK_ID`` says, because scripts for one device put names in it.

    Raises:
        ConfigError: the rank is no number or not below the size, or ``CM_*`` variables say something too.
    """
    size = integer(env, "RANK_SIZE", 1)
    if size is None or (size > 1 and text(env, "RANK_ID") is None):
        return None
    chief = text(env, "CM_CHIEF_IP")
    if chief is not None:
        raise ConfigError(f"RANK_SIZE={size} and CM_CHIEF_IP={chief} are both set: keep RANK_* or CM_*, not both")
    rank = 0 if size == 1 else required(env, "RANK_ID", beside="RANK_SIZE")
    detail = f"RANK_ID={env.get('RANK_ID', '')} RANK_SIZE={size}"
    job = text(env, "JOB_ID")
    if job is not None:
        detail += f" JOB_ID={job}"
    return Identity.on_one_host(rank, size, job=f"rank-env:{job or ''}", source="RANK_ID/RANK_SIZE", detail=detail)
