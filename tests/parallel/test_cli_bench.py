"""``npucoll bench``: the figures follow from each other, every wrong result is counted, and mistakes are one line."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

pytest.importorskip("npucoll._engine")

import npucoll
from npucoll.bench import plot
from npucoll.bench.data import Block, Blocks, Expected, numpy_dtype, poison, reduction, shift, wrong_elements
from npucoll.bench.kinds import ITEM_SIZES, KINDS
from npucoll.bench.measure import calls_in_a_sample
from npucoll.bench.options import human_size, parse_size
from npucoll.cli import main
from npucoll.communicators import Communicator
from npucoll.testing import Outcome, run_ranks, run_script
from npucoll.types import DTYPES

# Where the tested npucoll is: a checkout, or an installation.
ROOT = Path(npucoll.__file__).resolve().parents[1]
LAUNCHER_VARIABLES = ("NPUCOLL_", "RANK_", "CM_", "OMPI_", "PMI", "SLURM_", "WORLD_SIZE", "HOROVOD_", "TF_CONFIG")
BFLOAT16 = pytest.param(
    "bfloat16",
    marks=pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is None, reason="bfloat16 needs ml_dtypes"),
)
QUICK = ("--iters", "2", "--warmup", "1")
# Bus bandwidth over algorithm bandwidth, as nccl-tests documents it.
FACTORS = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "broadcast": lambda n: 1,
    "allgather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "reduce": lambda n: 1,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "sendrecv": lambda n: 1,
}
DIVIDED = ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name == "RANK" or name.startswith(LAUNCHER_VARIABLES):
            monkeypatch.delenv(name)
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", path)


def bench(*words: str) -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "npucoll", "bench", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def figures(*words: str) -> Dict[str, Any]:
    outcome = bench(*words, *QUICK, "--json")
    assert (outcome.code, outcome.stderr) == (0, "")
    return json.loads(outcome.stdout)


# -- the figures


@pytest.mark.parametrize("ranks", [2, 3])
def test_figures_of_every_collective_follow_from_each_other(ranks: int) -> None:
    sizes = [4, 1001, 40 << 10]
    report = figures("-n", str(ranks), "--collective", "all", "--sizes", "4,1001,40K", "--root", "1")
    assert (report["ranks"], report["engine"], report["launcher"]) == (ranks, "native", "npucoll bench")
    assert report["errors"] == 0
    rows: Dict[str, List[Dict[str, Any]]] = {}
    for row in report["rows"]:
        rows.setdefault(row["collective"], []).append(row)
    assert list(rows) == list(KINDS)
    for collective, factor in FACTORS.items():
        unit = 4 * ranks if collective in DIVIDED else 4
        assert [row["size"] for row in rows[collective]] == [max(unit, size // unit * unit) for size in sizes]
        for row in rows[collective]:
            assert row["count"] * 4 == row["size"]
            assert row["algbw"] == pytest.approx(row["size"] / (row["median_us"] * 1e-6) / 1e9)
            assert row["busbw"] == pytest.approx(row["algbw"] * factor(ranks))
            assert row["memcpy_share"] == pytest.approx(row["memcpy_us"] / row["median_us"])
            assert 0 < row["min_us"] <= row["median_us"]
            assert row["calls_per_sample"] == (1 if row["size"] >= 16 << 10 else 32)
            assert row["op"] == ("sum" if collective in ("allreduce", "reduce", "reduce_scatter") else None)
            assert row["root"] == (1 if collective in ("broadcast", "reduce", "gather", "scatter") else None)
    (barrier,) = rows["barrier"]
    assert (barrier["size"], barrier["count"], barrier["algbw"], barrier["memcpy_us"]) == (0, 0, None, None)
    assert barrier["median_us"] > 0


@pytest.mark.parametrize("op", ["sum", "mean", "min", "max", "prod"])
def test_every_dtype_in_place_and_not(op: str) -> None:
    unfit = {"sum": "b", "mean": "b", "min": "c", "max": "c"}.get(op, "")
    names = [name for name in ITEM_SIZES if name != "bfloat16" and np.dtype(name).kind != unfit]
    names += ["bfloat16"] if importlib.util.find_spec("ml_dtypes") else []
    words = ["--dtype", ",".join(names), "--op", op, "--sizes", "64,70000"]
    there = figures("--collective", "allreduce,reduce_scatter", *words)
    assert [row["dtype"] for row in there["rows"]] == 2 * [name for name in names for _ in range(2)]
    assert (there["errors"], there["in_place"]) == (0, False)
    here = figures("--collective", "all", "--in-place", *words)
    assert {row["collective"] for row in here["rows"]} == {"allreduce", "broadcast", "alltoall", "reduce"}
    assert (here["errors"], here["in_place"]) == (0, True)


@pytest.mark.parametrize("in_place", [False, True])
def test_plans(in_place: bool) -> None:
    words = ["-n", "3", "--collective", "all", "--plan", "--sizes", "4,1K,70000", *(["--in-place"] if in_place else [])]
    report = figures(*words)
    assert (report["plan"], report["in_place"], report["errors"]) == (True, in_place, 0)
    everything = {"allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "reduce", "gather", "barrier"}
    named = {row["collective"] for row in report["rows"]}
    assert named == ({"allreduce", "broadcast", "alltoall", "reduce"} if in_place else everything)
    assert figures("--sizes", "4")["plan"] is False


def test_the_table_and_a_file_of_figures(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    outcome = bench("-n", "3", "--collective", "allgather,barrier", "--max", "64", *QUICK, "--json", str(path))
    assert (outcome.code, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith(f"# npucoll {npucoll.__version__}, Python ")
    assert lines[1].startswith("# 3 ranks on ")
    assert lines[1].endswith("engine native, started by npucoll bench")
    assert "# allgather; size: the result; each rank gives size / ranks" in lines
    assert lines[-1] == "# every result was right"
    cells = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:4] for row in cells] == [
        ["12", "3", "float32", "-"],
        ["60", "15", "float32", "-"],
        ["0", "0", "-", "-"],
    ]
    assert [row[-1] for row in cells] == ["0", "0", "0"]
    report = json.loads(path.read_text())
    for row, words in zip(report["rows"], cells):
        assert float(words[4]) == pytest.approx(row["median_us"], rel=1e-2)


def test_many_sizes_grow_by_the_factor() -> None:
    report = figures("--min", "8", "--max", "1K", "--factor", "8", "--dtype", "float64,int8")
    assert [(row["dtype"], row["size"]) for row in report["rows"]] == [
        (dtype, size) for dtype in ("float64", "int8") for size in (8, 64, 512)
    ]


def test_ranks_of_a_launcher_measure_and_rank_0_tells(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    words = ["-m", "npucoll", "bench", "--sizes", "1K", *QUICK]
    outcome = run_script(sys.executable, 2, *words, "-n", "2", "--json", str(path))
    assert outcome.code == 0, outcome.stderr
    assert all(line.startswith("[0] ") for line in outcome.stdout.splitlines())
    assert "started by npucoll run" in outcome.stdout
    report = json.loads(path.read_text())
    assert (report["ranks"], report["launcher"], len(report["rows"])) == (2, "npucoll run", 1)
    contradiction = run_script(sys.executable, 2, *words, "-n", "4")
    assert contradiction.code == 2
    assert "-n 4: this is rank 1 of 2 already (NPUCOLL_RANK=1 NPUCOLL_SIZE=2)" in contradiction.stderr


def test_a_reader_that_goes_away_ends_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "npucoll", "bench", "--max", "64K", "--iters", "300"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def test_without_a_standard_output_only_the_files_are_written(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    words = f"{sys.executable} -m npucoll bench --sizes 4 --iters 1 --json {path}"
    assert subprocess.run(["sh", "-c", f"exec {words} <&- >&-"], timeout=60).returncode == 0
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_an_interrupt_ends_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "npucoll", "bench", "--max", "64K", "--iters", "100000"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Who runs the tests in the background lets them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout.readline().startswith(b"# npucoll")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130
        # A rank may learn of the other's interrupt before its own.
        assert b"Traceback" not in stderr
    finally:
        process.kill()
        process.communicate()


def test_the_process_that_starts_the_ranks_needs_no_numpy() -> None:
    code = "import sys, npucoll.cli.bench; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


def test_the_known_dtypes_are_those_of_the_collectives() -> None:
    assert list(ITEM_SIZES) == list(DTYPES)
    for name, size in ITEM_SIZES.items():
        if name != "bfloat16":
            assert np.dtype(name).itemsize == size


def test_several_small_calls_are_timed_together() -> None:
    sizes = (1, 2048, 4096, 12 << 10, (16 << 10) - 1, 16 << 10, 1 << 30)
    assert [calls_in_a_sample(size) for size in sizes] == [32, 32, 16, 5, 4, 1, 1]


# -- the oracle


def checked(dtype: str, op: str, ranks: int, change: Any) -> int:
    """Return how many elements are wrong in a right result after ``change`` of it."""
    blocks = Blocks(numpy_dtype(dtype), op, ranks)
    expected = reduction(blocks, accumulates_in_float32=True)
    found = np.empty(200_000, blocks.dtype)
    expected.exact.fill(found, shift(5))
    change(found)
    return wrong_elements(found, expected, shift(5))


def nothing(found: np.ndarray) -> None:
    pass


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", BFLOAT16, "float32", "float64", "complex64"])
@pytest.mark.parametrize("op", ["sum", "mean", "prod"])
def test_wrong_elements_are_counted_wherever_they_are(dtype: str, op: str) -> None:
    def spoil(found: np.ndarray) -> None:
        for place in (0, 65520, 65521, 131_042, 199_999):
            found[place] += 1

    assert checked(dtype, op, 3, nothing) == 0
    assert checked(dtype, op, 3, spoil) == 5


@pytest.mark.parametrize("dtype", ["float16", BFLOAT16, "float32"])
@pytest.mark.parametrize("op", ["sum", "mean", "prod"])
def test_a_result_may_be_rounded_the_other_way_but_not_be_further_off(dtype: str, op: str) -> None:
    blocks = Blocks(numpy_dtype(dtype), op, 2)
    expected = reduction(blocks, accumulates_in_float32=True)
    wide, found = expected.wide.piece(0, 65521), expected.exact.piece(0, 65521).copy()
    bits = found.view(np.dtype(f"u{found.itemsize}"))
    bits[np.abs(found.astype(np.float64)) > np.abs(wide)] -= 1  # The next one towards zero.
    assert wrong_elements(found, expected, 0) == 0
    # float32 is allowed the roundings of its own accumulation too, which count where the inputs nearly cancel out.
    bits += 4 if dtype != "float32" else 1000
    assert wrong_elements(found, expected, 0) > 60_000


def test_a_sum_in_half_precision_is_counted_where_the_engine_promises_a_wider_one() -> None:
    blocks = Blocks(np.dtype(np.float16), "sum", 8)
    found = np.zeros(65521, np.float16)
    for rank in range(8):
        found += blocks.elements(rank)
    assert wrong_elements(found, reduction(blocks, accumulates_in_float32=True), 0) > 1000
    assert wrong_elements(found, reduction(blocks, accumulates_in_float32=False), 0) == 0


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        *itertools.product(["int32", "uint8", "float32"], ["sum", "min", "max", "prod"]),
        ("bool", "max"),
        ("bool", "prod"),
    ],
)
def test_what_an_earlier_call_left_and_what_stood_there_before_is_wrong(dtype: str, op: str) -> None:
    blocks = Blocks(np.dtype(dtype), op, 2)
    expected = reduction(blocks, True)
    found = np.empty(10_000, dtype)
    expected.exact.fill(found, shift(4))
    assert wrong_elements(found, expected, shift(5)) > 100
    poison(found, 5)
    assert wrong_elements(found, expected, shift(5)) > 100


def test_pieces_in_the_wrong_place_are_wrong() -> None:
    block = Blocks(np.dtype(np.float32), None, 2).of(0)
    found = np.empty(1 << 18, np.float32)
    block.fill(found, 3)
    assert wrong_elements(found, Expected(block), 3) == 0
    half = found.size // 2
    found[...] = np.concatenate([found[half:], found[:half]])
    assert wrong_elements(found, Expected(block), 3) == found.size


def test_ranks_have_data_of_their_own_and_of_every_call() -> None:
    blocks = Blocks(np.dtype(np.int32), "sum", 2)
    assert (blocks.of(0).piece(0, 1000) != blocks.of(1).piece(0, 1000)).any()
    assert len({shift(number) for number in range(65521)}) == 65521


def test_integers_are_reduced_as_the_collectives_say() -> None:
    blocks = Blocks(np.dtype(np.int16), "mean", 2)
    first, second = blocks.elements(0).astype(int), blocks.elements(1).astype(int)
    found = reduction(blocks, True).exact.piece(0, 65521)
    assert found.tolist() == [math.trunc(total / 2) for total in (first + second).tolist()]
    wraps = Blocks(np.dtype(np.uint8), "prod", 20)
    total = np.prod([wraps.elements(rank).astype(object) for rank in range(20)], axis=0)
    assert reduction(wraps, True).exact.piece(0, 65521).tolist() == [value % 256 for value in total.tolist()]


@pytest.mark.parametrize("count", [1, 65521, 200_000])
@pytest.mark.parametrize("start", [0, 65520, 70_000])
def test_a_block_repeats(count: int, start: int) -> None:
    target = np.empty(count, np.int64)
    Block(np.arange(65521)).fill(target, start)
    np.testing.assert_array_equal(target, (np.arange(count) + start) % 65521)


# -- what goes wrong is told


def broken(path: str, collective: str, method: str) -> int:
    """Measure on a rank where a collective changes one element of its result, or a barrier does not wait."""
    right = getattr(Communicator, method)

    def wrong(self: Communicator, *arguments: Any, **options: Any) -> Any:
        if method == "barrier":
            return None
        result = right(self, *arguments, **options)
        if isinstance(result, np.ndarray) and result.dtype == np.float32 and self.rank == 1:
            result.flat[-1] += 1
        return result

    setattr(Communicator, method, wrong)
    return main(["bench", "--collective", collective, "--sizes", "4,64K", "--iters", "9", "--json", path])


@pytest.mark.parametrize(
    "collective", ["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "sendrecv"]
)
def test_a_wrong_result_is_an_error_and_the_code_is_1(tmp_path: Path, collective: str) -> None:
    path = tmp_path / "figures.json"
    codes = run_ranks(broken, 2, str(path), collective, "recv" if collective == "sendrecv" else collective)
    assert codes == [1, 1]
    report = json.loads(path.read_text())
    # One element in each call of rank 1, in the iterations of the warm-up too.
    assert [row["errors"] for row in report["rows"]] == [14 * row["calls_per_sample"] for row in report["rows"]]
    assert report["errors"] == sum(row["errors"] for row in report["rows"])


def test_a_barrier_that_does_not_wait_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert run_ranks(broken, 2, str(path), "barrier", "barrier") == [1, 1]
    assert json.loads(path.read_text())["errors"] > 0


BAD = [
    (["--collective", "allreduc"], "--collective allreduc: unknown; known are allreduce, broadcast, "),
    (["--dtype", "float"], "--dtype float: unknown; known are bool, int8, "),
    (["--op", "average"], "--op average: unknown; known are sum, mean, min, max, prod"),
    (["--dtype", "bool"], "--op sum is not defined for bool; choose min, max or prod"),
    (["--dtype", "complex64", "--op", "max"], "--op max is not defined for complex64"),
    (["--sizes", "4,64Q"], "--sizes 64Q: a size is a number of bytes from 1 on"),
    (["--sizes", "0"], "--sizes 0: a size is a number of bytes from 1 on"),
    (["--sizes", "4", "--max", "8"], "leave out --min and --max"),
    (["--min", "2K", "--max", "1K"], "--min 2K is above --max 1K"),
    (["--factor", "1"], "--factor 1: it is a whole number, 2 or more"),
    (["--iters", "0"], "--iters 0: it is a whole number, 1 or more"),
    (["--warmup", "some"], "--warmup some: it is a whole number, 0 or more"),
    (["-n", "0"], "-n 0: it is a whole number, 1 or more"),
    (["--root", "2"], "--root 2 is no rank; the ranks are 0 to 1"),
    (["--in-place", "--collective", "gather"], "gather has no form in place; choose among allreduce, broadcast"),
    (["--plan", "--collective", "barrier,scatter"], "scatter cannot be planned; choose among allreduce, "),
    (["--max", "1000000G"], "MiB are available; choose a smaller --max"),
    (["--plot", "figure.gif"], "--plot figure.gif: the name ends in .png or .html"),
    (["--plot", "/no/such/figure.html"], "there is no directory /no/such"),
    (["--json", "/no/such/figures"], "there is no directory /no/such"),
    (["--json", "/"], "it is a directory"),
    (["--collective", "barrier", "--plot", "figure.html"], "a barrier has no sizes to draw"),
    (["--colective", "all"], "unrecognized arguments: --colective all; did you mean --collective?"),
    (["--iters"], "expected one argument"),
]


@pytest.mark.parametrize(("words", "text"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_a_mistake_is_one_line(words: List[str], text: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["bench", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.match(r"npucoll: error: .*\n\Z", err)
    assert text in err


def test_sizes_in_words() -> None:
    sizes = {"1": 1, "4b": 4, "64K": 65536, "64kib": 65536, "1M": 1 << 20, "3G": 3 << 30, "1500": 1500}
    assert {text: parse_size("--sizes", text) for text in sizes} == sizes
    assert [human_size(size) for size in (1, 1500, 2048, 1 << 20, 3 << 30)] == ["1", "1500", "2K", "1M", "3G"]


# -- drawings


def test_a_page_with_its_drawings_in_it(tmp_path: Path) -> None:
    path = tmp_path / "figures.html"
    words = ["--collective", "allreduce,broadcast,barrier", "--sizes", "4,1K,64K", "--plot", str(path)]
    report = figures(*words)
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r"(src|href)=|url\(|@import|https?:", page)
    drawings = [ElementTree.fromstring(text) for text in re.findall(r"<svg viewBox.*?</svg>", page, re.DOTALL)]
    assert len(drawings) == 2
    for drawing in drawings:
        # allreduce, broadcast and memcpy; a barrier has no size.
        assert [len(line.get("points").split()) for line in drawing.iter("polyline")] == [3, 3, 3]
        notes = [note.text for note in drawing.iter("title")]
        assert any(note.startswith("allreduce float32 sum, 64K: ") for note in notes)
    assert page.count("<tr>") == 1 + len(report["rows"])


def test_lines_of_a_drawing() -> None:
    def row(collective: str, size: int, busbw: float) -> Dict[str, Any]:
        figures = {"size": size, "median_us": 2.0, "busbw": busbw, "memcpy_us": 1.0}
        return {"collective": collective, "dtype": "int8", "op": None, **figures}

    rows = [row("gather", 8, 3.0), row("gather", 4, 2.0), row("scatter", 4, 0.0), row("barrier", 0, 0.0)]
    lines = plot.series_of({"rows": rows}, "busbw", lambda row: row["memcpy_us"])
    assert [(line.label, line.points, line.reference) for line in lines] == [
        ("gather int8", [(4, 2.0), (8, 3.0)], False),
        ("memcpy by all ranks at once", [(4, 1.0), (8, 1.0)], True),
    ]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_png(tmp_path: Path) -> None:
    path = tmp_path / "figures.png"
    figures("--sizes", "4,1K", "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_png_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    assert main(["bench", "--plot", "figures.png"]) == 2
    assert capsys.readouterr().err == (
        "npucoll: error: --plot figures.png: a png is drawn by matplotlib: pip install 'npucoll[bench]'; "
        "a name in .html needs nothing\n"
    )
