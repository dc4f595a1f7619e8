"""What ``npucoll doctor`` looks at on the machine: cores, memory, limits, and whether ranks can meet here."""

from __future__ import annotations

import os
import platform
import resource
import secrets
import threading
import time
from typing import Dict, List, Optional

__all__ = ["facts", "meeting_seconds", "troubles"]

_FEW_FILES = 256
_LITTLE_MEMORY = 256 << 20


def facts() -> Dict[str, Optional[int]]:
    """Return numbers about this machine; None where there is no limit or the system does not tell. Sizes in bytes."""
    shm = _shm()
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "core_quota_percent": _quota(),
        "memory": _meminfo("MemTotal"),
        "memory_available": _meminfo("MemAvailable"),
        "memory_limit": _number("/sys/fs/cgroup/memory.max") or _number("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        "dev_shm": shm,
        "open_files_limit": _limit(resource.RLIMIT_NOFILE),
        "processes_limit": _limit(resource.RLIMIT_NPROC),
        "address_space_limit": _limit(resource.RLIMIT_AS),
        "file_size_limit": _limit(resource.RLIMIT_FSIZE),
    }


def troubles(numbers: Dict[str, Optional[int]]) -> List[str]:
    """Return what of ``facts`` will get in the way, and what to do about it."""
    found = []
    files, available, size = numbers["open_files_limit"], numbers["memory_available"], numbers["file_size_limit"]
    if files is not None and files < _FEW_FILES:
        found.append(f"this process may open {files} files only: ulimit -n 1024")
    if available is not None and available < _LITTLE_MEMORY:
        found.append(f"only {available >> 20} MiB of memory are available")
    if size is not None:
        found.append(
            f"files may have {size >> 10} KiB only, and shared memory is a file to the system: ulimit -f unlimited"
        )
    if platform.system() != "Linux":
        found.append(f"npucoll runs on Linux; this is {platform.system()}")
    return found


def meeting_seconds() -> float:
    """Let two ranks, threads of this process, meet and return how long it took.

    Raises:
        Exception: whatever keeps ranks from meeting on this machine.
    """
    from npucoll.bootstrap.identity import Identity
    from npucoll.bootstrap.rendezvous import meet

    job = f"doctor-{secrets.token_hex(8)}"
    failures: List[BaseException] = []

    def one(rank: int) -> None:
        identity = Identity.on_one_host(rank, 2, job=job, source="doctor", detail="a trial")
        try:
            meet(identity, generation=1, timeout=5).close()
        except Exception as error:
            failures.append(error)

    began = time.perf_counter()
    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.perf_counter() - began


def _limit(which: int) -> Optional[int]:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _meminfo(name: str) -> Optional[int]:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def _number(path: str) -> Optional[int]:
    try:
        with open(path, encoding="ascii") as file:
            value = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    # The older control groups write a number near the largest for "no limit".
    return value if value < 1 << 60 else None


def _quota() -> Optional[int]:
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        return 100 * int(quota) // int(period)
    except (OSError, ValueError):
        return None


def _shm() -> Optional[int]:
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize
