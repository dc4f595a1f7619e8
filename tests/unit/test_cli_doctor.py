"""``npucoll doctor``: tells who this process is, and what will not work."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict

import pytest

from npucoll import config
from npucoll.bootstrap.detect import LAUNCHERS
from npucoll.cli import doctor, machine, main
from npucoll.hooks.manager import HookManager

LAUNCHER_VARIABLES = ("NPUCOLL_", "RANK_", "CM_", "OMPI_", "PMI", "SLURM_", "WORLD_SIZE", "HOROVOD_", "TF_CONFIG")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name == "RANK" or name.startswith(LAUNCHER_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "meeting_seconds", lambda: 0.002)


MEETING_SECONDS = machine.meeting_seconds


def as_json(capsys: pytest.CaptureFixture) -> Dict[str, Any]:
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == (1 if report["problems"] else 0)
    return report


def outcome(report: Dict[str, Any], name: str) -> Dict[str, str]:
    return next(launcher for launcher in report["launchers"] if launcher["name"] == name)


def test_alone(capsys: pytest.CaptureFixture) -> None:
    report = as_json(capsys)
    assert (report["identity"]["rank"], report["identity"]["size"]) == (0, 1)
    assert report["identity"]["source"] == "single"
    assert {name for name, _ in LAUNCHERS} <= {launcher["name"] for launcher in report["launchers"]}
    assert {launcher["outcome"] for launcher in report["launchers"]} == {"not there"}
    assert report["software"]["executable"] == sys.executable
    assert report["machine"]["usable_cores"] >= 1
    assert report["instructions"] in ("SSE2", "NEON", "AVX2", "AVX-512")
    assert f"reductions use {report['instructions']}" in doctor.render(report)
    assert [setting["key"] for setting in report["settings"]] == list(config.KEYS)


def test_the_launcher_that_fits_and_the_one_that_contradicts_itself(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    report = as_json(capsys)
    assert report["identity"]["rank"] == 1
    assert outcome(report, "RANK_ID/RANK_SIZE")["outcome"] == "fits"
    assert outcome(report, "MPICH/PMI")["outcome"] == "contradicts itself"
    assert "PMI_SIZE is not" in outcome(report, "MPICH/PMI")["detail"]
    text = doctor.render(report)
    assert "rank 1 of 2 (local rank 1 of 2, host 0 of 1)" in text
    assert "because of RANK_ID/RANK_SIZE: RANK_ID=1 RANK_SIZE=2" in text


def test_a_contradiction_is_a_problem(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_SIZE", "2")
    report = as_json(capsys)
    assert any("RANK_SIZE=2, but RANK_ID is not set" in problem for problem in report["problems"])
    assert "unknown: see the problems" in doctor.render(report)


def test_a_warning_is_a_note(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    notes = as_json(capsys)["notes"]
    assert any("WORLD_SIZE=4, but RANK is not set" in note for note in notes)
    assert any("in no step of it: start the ranks with srun" in note for note in notes)


def test_settings_say_where_they_come_from(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUCOLL_TIMEOUT", "60")
    (timeout,) = [setting for setting in as_json(capsys)["settings"] if setting["key"] == "timeout"]
    assert (timeout["value"], timeout["origin"]) == (60.0, "NPUCOLL_TIMEOUT")


def test_a_bad_setting_hides_nothing_else(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUCOLL_TIMEOUT", "soon")
    report = as_json(capsys)
    assert any("NPUCOLL_TIMEOUT" in problem for problem in report["problems"])
    assert report["identity"]["size"] == 1
    assert report["machine"]
    assert "problems" in doctor.render(report)


def test_broken_hooks_hide_nothing_else(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no hooks today")

    monkeypatch.setattr(HookManager, "engines", broken)
    monkeypatch.setattr(HookManager, "launchers", broken)
    report = as_json(capsys)
    assert "RuntimeError: no hooks today" in report["problems"]
    assert report["identity"]["size"] == 1


def test_ranks_that_cannot_meet_are_a_problem(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("npucoll._ffi")

    def broken() -> float:
        raise OSError("sockets are forbidden")

    monkeypatch.setattr(machine, "meeting_seconds", broken)
    assert "ranks cannot meet on this machine: OSError: sockets are forbidden" in as_json(capsys)["problems"]


def test_an_absent_engine_is_a_problem(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "npucoll._ffi", None)
    monkeypatch.delattr("npucoll._ffi", raising=False)
    assert any("the compiled engine cannot be loaded" in problem for problem in as_json(capsys)["problems"])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("open_files_limit", 64, "ulimit -n 1024"),
        ("memory_available", 1 << 20, "only 1 MiB of memory"),
        ("file_size_limit", 1 << 20, "ulimit -f unlimited"),
    ],
)
def test_small_limits_are_problems(name: str, value: int, words: str) -> None:
    numbers = {**machine.facts(), "open_files_limit": 1024, "file_size_limit": None, "memory_available": 1 << 33}
    assert machine.troubles(numbers) == []
    (trouble,) = machine.troubles({**numbers, name: value})
    assert words in trouble


def test_the_meeting_is_tried() -> None:
    pytest.importorskip("npucoll._ffi")
    assert MEETING_SECONDS() < 5


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "usage: npucoll COMMAND"),
        (["--help"], 0, "doctor     say who"),
        (["--version"], 0, "npucoll "),
    ],
)
def test_overview(capsys: pytest.CaptureFixture, words: Any, code: int, text: str) -> None:
    assert main(words) == code
    assert text in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture) -> None:
    assert main(["docter"]) == 2
    assert "no command 'docter'; did you mean doctor?" in capsys.readouterr().err
