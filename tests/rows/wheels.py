"""Builds every distribution of the checkout into dist/: manylinux2014 wheels where zig is there, else plain ones.

zig (a package of the index, ``ziglang``) is a C compiler that can aim at an old C library: one wheel built here runs on
every Linux since glibc 2.17. A source install uses the machine's own compiler and needs none of this.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Optional

from interpreters import with_headers
from venvs import REQUIREMENTS, ROOT, VENVS, CommandFailed, Venv, clean_environment, run, tree_hash

__all__ = ["DIST", "build", "zig"]

DIST = ROOT / "dist"
SOURCES = VENVS / "wheel-sources"
GLIBC = "2.17"
SHARED = ["LICENSE", "README.md", "MANIFEST.in", "setup.py", "pyproject.toml", "npucoll", "native", "plugins"]


def build(machine: str = "") -> List[Path]:
    """Build what changed since the last time; returns the wheels of all distributions.

    Those for another ``machine`` ("aarch64") need zig and go into a directory of its name under dist/.
    """
    venv = _venv()
    cross = machine not in ("", platform.machine())
    machine = machine or platform.machine()
    folder = DIST / machine if cross else DIST
    with_zig = _has_zig(venv)
    if not with_zig:
        print(
            "wheels: ziglang cannot be installed here, so the wheels fit this machine's C library and newer ones only"
        )
        if cross:
            raise CommandFailed(f"wheels for {machine} need it")
    folder.mkdir(parents=True, exist_ok=True)
    stamps_file = folder / "stamps.json"
    stamps: Dict[str, Dict[str, str]] = json.loads(stamps_file.read_text()) if stamps_file.exists() else {}
    copied = False
    for directory in [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]:
        name = "npucoll" if directory == ROOT else f"npucoll-{directory.name.replace('_', '-')}"
        wanted = _inputs(directory) + str(with_zig)
        known = stamps.get(name, {})
        if known.get("inputs") == wanted and (folder / known["wheel"]).exists():
            continue
        if not copied:
            _copy_sources()
            copied = True
        print(f"wheels: building {name}", flush=True)
        wheel = _build_one(venv, SOURCES / directory.relative_to(ROOT), machine if with_zig else "")
        for old in folder.glob(f"{name.replace('-', '_')}-[0-9]*.whl"):
            old.unlink()
        kept = Path(shutil.move(str(wheel), str(folder)))
        stamps[name] = {"inputs": wanted, "wheel": kept.name}
        stamps_file.write_text(json.dumps(stamps, indent=1))
    return [folder / entry["wheel"] for entry in stamps.values()]


def zig() -> Optional[str]:
    """Return the command that zig is, or None where it cannot be installed."""
    venv = _venv()
    return f"{venv.python} -m ziglang" if _has_zig(venv) else None


def _has_zig(venv: Venv) -> bool:
    return subprocess.run([venv.python, "-c", "import ziglang"], stderr=subprocess.DEVNULL).returncode == 0


def _venv() -> Venv:
    interpreter = with_headers(["3.11", "3.12", "3.10", "3.9", "3.13"])
    if interpreter is None:
        raise CommandFailed("no Python with its C header Python.h: install it (Debian: apt-get install python3-dev)")
    files = [REQUIREMENTS / "wheels.txt"]
    venv = Venv("wheels", interpreter, files, [REQUIREMENTS / "wheels-zig.txt"])
    try:
        venv.ensure()
    except CommandFailed:
        venv = Venv("wheels", interpreter, files)
        venv.ensure()
    return venv


def _inputs(directory: Path) -> str:
    """Return a digest of all that the wheel of ``directory`` is made from."""
    files = _present(directory, "pyproject.toml", "setup.py", "MANIFEST.in", "README.md")
    parts = ("src", "csrc") if directory != ROOT else ("npucoll", "native/src", "native/build_engine.py")
    return tree_hash([*files, *_present(directory, *parts), ROOT / "LICENSE", ROOT / "native" / "include"])


def _present(directory: Path, *names: str) -> List[Path]:
    return [directory / name for name in names if (directory / name).exists()]


def _copy_sources() -> None:
    """Copy the sources: builds leave files behind that a later build would pack."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.o", "*.egg-info", "build", "tests", ".*")
    for path in _present(ROOT, *SHARED):
        if path.is_dir():
            shutil.copytree(path, SOURCES / path.name, ignore=ignore)
        else:
            SOURCES.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, SOURCES / path.name)
    for plugin in (SOURCES / "plugins").iterdir():
        shutil.copy2(ROOT / "LICENSE", plugin)


def _build_one(venv: Venv, directory: Path, machine: str) -> Path:
    """Build one wheel, with zig for ``machine``, or (an empty name) with the compiler of this machine."""
    outcome = SOURCES / "wheels"
    shutil.rmtree(outcome, ignore_errors=True)
    environment = clean_environment(CFLAGS="-g0", LDFLAGS="-s")
    if machine:
        compiler = f"{venv.python} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}"
        environment.update(CC=compiler, LDSHARED=f"{compiler} -shared", ZIG_GLOBAL_CACHE_DIR=str(VENVS / "zig-cache"))
    command = [venv.python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run([*command, "--no-build-isolation", "--wheel-dir", str(outcome), str(directory)], env=environment)
    (wheel,) = outcome.glob("*.whl")
    plain = f"linux_{platform.machine()}"
    if machine and wheel.stem.endswith(plain):
        tag = f"manylinux2014_{machine}.manylinux_{GLIBC.replace('.', '_')}_{machine}"
        run([venv.python, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel.name], cwd=str(outcome))
        (wheel,) = outcome.glob("*.whl")
    return wheel
