"""``npucoll plugins``: which plugins are installed, what they offer, and what is wrong with those that do not load."""

from __future__ import annotations

import argparse
import json
from typing import Any, Dict, List

from npucoll.hooks.manager import LOADED, HookManager

SUMMARY = "list the plugins, their modes and engines, and what is wrong with those that do not load"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON for scripts")


def run(arguments: argparse.Namespace) -> int:
    """Print the plugins. Returns 1 where one of them is broken, else 0."""
    from npucoll.lifecycle import runtime

    hooks = runtime.hooks()
    report = collect(hooks)
    print(json.dumps(report, indent=2) if arguments.json else render(report))
    return 1 if hooks.troubles() else 0


def collect(hooks: HookManager) -> Dict[str, List[Dict[str, Any]]]:
    """Return all that the command tells, as plain data."""
    modes = [_offer(one.name, one.summary, one.unavailable()) for one in hooks.modes().values()]
    engines = [_offer(one.name, one.summary, one.unavailable()) for one in hooks.engines().values()]
    launchers = [{"name": one.name, "order": one.order} for one in hooks.launchers()]
    plugins = [
        {
            "name": one.name,
            "module": one.value,
            "distribution": one.distribution,
            "state": one.state,
            "detail": one.text,
            "hooks": one.hooks,
        }
        for one in hooks.reports
        if not one.builtin
    ]
    return {"plugins": plugins, "modes": modes, "engines": engines, "launchers": launchers}


def render(report: Dict[str, List[Dict[str, Any]]]) -> str:
    """Return the report for a person."""
    lines = ["plugins:"]
    for plugin in report["plugins"]:
        origin = plugin["distribution"] or plugin["module"]
        lines.append(f"  {plugin['name']:<14} {plugin['state']:<16} {origin}")
        if plugin["state"] != LOADED:
            lines.append(f"  {'':<14} {plugin['detail']}")
    if not report["plugins"]:
        lines.append("  none; modes are plugins: pip install 'npucoll[keras]'")
    for title in ("modes", "engines"):
        lines.append(f"{title}:")
        for offer in report[title]:
            state = "ready" if offer["available"] else "not available"
            lines.append(f"  {offer['name']:<14} {state:<16} {offer['summary']}")
            if not offer["available"]:
                lines.append(f"  {'':<14} {offer['reason']}")
        if not report[title]:
            lines.append("  none")
    launchers = ", ".join(one["name"] for one in report["launchers"])
    lines.append(f"launchers, in the order in which they are asked:\n  {launchers}")
    return "\n".join(lines)


def _offer(name: str, summary: str, reason: Any) -> Dict[str, Any]:
    return {"name": name, "summary": summary, "available": reason is None, "reason": reason or ""}
