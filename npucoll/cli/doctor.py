"""``npucoll doctor``: who this process is and why, what is installed, and what will not work."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import warnings
from typing import Any, Callable, Dict, List, Tuple

SUMMARY = "say who this process is and why, what is installed, and what will not work"

Report = Dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")
    parser.epilog = "The exit code is 1 where something will not work, else 0."


def run(arguments: argparse.Namespace) -> int:
    """Print the findings. Returns 1 where there is a problem, else 0."""
    report = collect()
    print(json.dumps(report, indent=2) if arguments.json else render(report))
    return 1 if report["problems"] else 0


def collect() -> Report:
    """Return all that the command tells, as plain data. Whatever fails is a problem in the report."""
    report: Report = {"problems": [], "notes": []}
    for section in (_software, _settings, _plugins, _identity, _engine, _machine):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                section(report)
            report["notes"] += [str(warning.message) for warning in caught]
        except Exception as error:  # A broken installation is what this command is for.
            report["problems"].append(f"{type(error).__name__}: {error}")
    report["problems"] = list(dict.fromkeys(report["problems"]))
    return report


# -- the sections


def _software(report: Report) -> None:
    from npucoll import __version__

    report["software"] = {
        "npucoll": __version__,
        "location": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
    }
    import numpy

    report["software"]["numpy"] = numpy.__version__


def _settings(report: Report) -> None:
    from npucoll import config

    settings = config.load()
    report["settings"] = [
        {"key": key, "value": getattr(settings, key), "origin": settings.origins.get(key, "default")}
        for key in config.KEYS
    ]


def _plugins(report: Report) -> None:
    from npucoll.cli.plugins import collect as collect_plugins
    from npucoll.lifecycle import runtime

    hooks = runtime.hooks()
    report.update(collect_plugins(hooks))
    report["problems"] += [trouble.describe() for trouble in hooks.troubles()]


def _identity(report: Report) -> None:
    from npucoll.bootstrap.detect import LAUNCHERS, explain, identify
    from npucoll.bootstrap.sockets import ranks_seen

    launchers = _launchers()
    report["launchers"] = [
        {
            "name": finding.name,
            "outcome": "fits" if finding.identity else "contradicts itself" if finding.error else "not there",
            "detail": finding.identity.detail if finding.identity else finding.error or "",
        }
        for finding in explain(launchers=launchers or LAUNCHERS)
    ]
    identity = identify(launchers=launchers or LAUNCHERS)
    seen = sorted(rank for size, rank in ranks_seen(identity.job) if size == identity.size and size > 1)
    report["identity"] = {**identity.__dict__, "running": seen}
    allocation = os.environ.get("SLURM_JOB_ID")
    if allocation and identity.source == "single":
        report["notes"].append(
            f"this is inside the Slurm allocation {allocation}, but in no step of it: start the ranks with srun"
        )


def _launchers() -> List[Tuple[str, Callable[[Any], Any]]]:
    # Plugins may bring launchers; where the hooks do not work, that is reported elsewhere, and ours still do.
    try:
        from npucoll.lifecycle import runtime

        return [(one.name, one.detect) for one in runtime.hooks().launchers()]
    except Exception:
        return []


def _engine(report: Report) -> None:
    from npucoll.cli.machine import meeting_seconds

    report["meeting_milliseconds"] = report["instructions"] = None
    try:
        from npucoll import _ffi
    except ImportError as error:
        report["problems"].append(f"the compiled engine cannot be loaded ({error}): only one rank can run")
        return
    report["instructions"] = _ffi.instructions()
    try:
        report["meeting_milliseconds"] = round(meeting_seconds() * 1000, 2)
    except Exception as error:
        report["problems"].append(f"ranks cannot meet on this machine: {type(error).__name__}: {error}")


def _machine(report: Report) -> None:
    from npucoll.cli import machine

    report["machine"] = machine.facts()
    report["problems"] += machine.troubles(report["machine"])


# -- for people


def render(report: Report) -> str:
    """Return the report for a person."""
    lines: List[str] = []
    software = report.get("software", {})
    lines.append(f"npucoll {software.get('npucoll')} in {software.get('location')}")
    lines.append(f"Python {software.get('python')} ({software.get('executable')}), NumPy {software.get('numpy')}")
    lines.append(f"{software.get('system')}, {software.get('libc')}")
    lines += ["", "who this process is", *_render_identity(report)]
    lines += ["", "what can be used", *_render_offers(report)]
    lines += ["", "settings", *_render_settings(report)]
    lines += ["", "this machine", *_render_machine(report)]
    for title, texts in (("notes", report["notes"]), ("problems", report["problems"])):
        if texts:
            lines += ["", title, *[f"  - {text}" for text in texts]]
    if not report["problems"]:
        lines += ["", "no problem found"]
    return "\n".join(lines)


def _render_identity(report: Report) -> List[str]:
    lines = []
    identity = report.get("identity")
    if identity is None:
        lines.append("  unknown: see the problems")
    else:
        where = f"local rank {identity['local_rank']} of {identity['local_size']}"
        host = f"host {identity['node_rank']} of {identity['node_count']}"
        lines.append(f"  rank {identity['rank']} of {identity['size']} ({where}, {host})")
        lines.append(f"  because of {identity['source']}: {identity['detail']}")
        if identity["running"]:
            lines.append(f"  ranks of this job that run now: {', '.join(map(str, identity['running']))}")
    lines.append("  launchers, the first that fits wins:")
    for launcher in report.get("launchers", []):
        detail = f": {launcher['detail']}" if launcher.get("detail") else ""
        lines.append(f"    {launcher['name']:<18} {launcher.get('outcome', '')}{detail}")
    return lines


def _render_offers(report: Report) -> List[str]:
    lines = []
    for title, kind in (("engine", "engines"), ("mode", "modes")):
        for offer in report.get(kind, []):
            state = "ready" if offer["available"] else f"not available: {offer['reason']}"
            lines.append(f"  {title + ' ' + offer['name']:<18} {state}")
    if not report.get("modes"):
        lines.append("  no mode: modes are plugins, for example pip install 'npucoll[keras]'")
    for plugin in report.get("plugins", []):
        detail = f": {plugin['detail']}" if plugin["detail"] else ""
        lines.append(f"  {'plugin ' + plugin['name']:<18} {plugin['state']}{detail}")
    if report.get("meeting_milliseconds") is not None:
        lines.append(f"  two ranks met in {report['meeting_milliseconds']} ms")
    if report.get("instructions") is not None:
        lines.append(f"  reductions use {report['instructions']}")
    return lines


def _render_settings(report: Report) -> List[str]:
    lines = []
    for setting in report.get("settings", []):
        value = setting["value"]
        text = ", ".join(value) if isinstance(value, (list, tuple)) else "" if value is None else str(value)
        lines.append(f"  {setting['key']:<18} {text or '-':<12} {setting['origin']}")
    return lines


def _render_machine(report: Report) -> List[str]:
    numbers = report.get("machine")
    if numbers is None:
        return ["  unknown: see the problems"]
    quota = numbers["core_quota_percent"]
    cores = f"{numbers['usable_cores']} of {numbers['cores']} may be used"
    cores += "" if quota is None else f", {quota} % of one at a time"
    memory = f"{_gib(numbers['memory'])}, {_gib(numbers['memory_available'])} available"
    memory += "" if numbers["memory_limit"] is None else f", limit {_gib(numbers['memory_limit'])}"
    return [
        f"  {'cores':<18} {cores}",
        f"  {'memory':<18} {memory}",
        f"  {'/dev/shm':<18} {_gib(numbers['dev_shm'])}; npucoll does not need it",
        f"  {'open files':<18} {_or_unlimited(numbers['open_files_limit'])}",
        f"  {'processes':<18} {_or_unlimited(numbers['processes_limit'])}",
        f"  {'address space':<18} {_or_unlimited(numbers['address_space_limit'])}",
    ]


def _gib(size: Any) -> str:
    if size is None:
        return "unknown"
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _or_unlimited(value: Any) -> str:
    return "unlimited" if value is None else str(value)
