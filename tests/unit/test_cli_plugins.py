"""What ``npucoll plugins`` tells, for persons and for scripts."""

from __future__ import annotations

import argparse
import json

import pytest

import npucoll.lifecycle
from npucoll.cli import plugins
from npucoll.hooks import ModeProvider
from npucoll.hooks.manager import HookManager

from test_hooks import Point, plugin  # isort: skip  # a neighbour in this directory


def offer():
    return [
        ModeProvider("ready", "does it", lambda: None),
        ModeProvider("bare", "would", lambda: None, lambda: "install x"),
    ]


@pytest.fixture
def run(monkeypatch, capsys):
    def run(points, *arguments):
        monkeypatch.setattr(npucoll.lifecycle.runtime, "hooks", lambda: HookManager((), points))
        parser = argparse.ArgumentParser()
        plugins.configure(parser)
        code = plugins.run(parser.parse_args(arguments))
        return code, capsys.readouterr().out

    return run


def test_text_shows_states_and_reasons(run):
    points = [Point("good", plugin(npucoll_modes=offer)), Point("crash", RuntimeError("no licence"))]
    code, text = run(points)
    assert code == 1
    for words in (
        "good",
        "loaded",
        "crash",
        "RuntimeError: no licence",
        "ready",
        "not available",
        "install x",
        "native",
    ):
        assert words in text


def test_json_is_complete(run):
    code, text = run([Point("good", plugin(npucoll_modes=offer))], "--json")
    report = json.loads(text)
    assert code == 0
    assert report["plugins"][0]["hooks"] == ["npucoll_modes"]
    assert [mode["available"] for mode in report["modes"]] == [True, False]
    assert report["modes"][1]["reason"] == "install x"
    assert report["launchers"][0]["name"] == "npucoll run"


def test_without_plugins_it_says_how_to_get_one(run):
    code, text = run([])
    assert code == 0
    assert "pip install 'npucoll[keras]'" in text
