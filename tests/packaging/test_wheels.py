"""The wheels: small, for every Python 3 and every Linux since glibc 2.17, and a source install without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from environments import ROOT, Environment

NAMES = {"npucoll", "npucoll_tensorflow", "npucoll_tf1", "npucoll_keras", "npucoll_estimator"}


def test_every_distribution_is_there_once_and_small(dist):
    wheels = list(dist.glob("*.whl"))
    assert sorted(path.name.split("-")[0] for path in wheels) == sorted(NAMES)
    for path in wheels:
        assert path.stat().st_size < 1_000_000, path.name


def test_tags_serve_every_python(dist):
    for path in dist.glob("*.whl"):
        python, abi, _ = path.stem.split("-")[-3:]
        assert (python, abi) in [("cp37", "abi3"), ("py3", "none")], path.name


def test_compiled_wheels_fit_manylinux2014(dist):
    pytest.importorskip("auditwheel")
    compiled = [path for path in dist.glob("*.whl") if not path.stem.endswith("-any")]
    assert len(compiled) == 2
    for path in compiled:
        if "manylinux" not in path.name:
            pytest.skip("ziglang was not there when the wheels were built")
        command = [sys.executable, "-m", "auditwheel", "show", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "manylinux_2_17" in done.stdout, done.stdout


def test_wheels_hold_the_package_only(dist):
    for path in dist.glob("*.whl"):
        top = {name.split("/")[0] for name in zipfile.ZipFile(path).namelist()}
        name = path.name.split("-")[0]
        assert {part for part in top if not part.endswith(".dist-info")} == {name}, path.name


def test_source_install_uses_the_compiler_of_the_machine(tmp_path):
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "build")
    for name in ("npucoll", "native"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy2(ROOT / name, source / name)
    build = "import setuptools.build_meta as b; print(b.build_sdist('out'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=str(source), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    environment = Environment(tmp_path / "venv")
    (sdist,) = (source / "out").glob("*.tar.gz")
    environment.pip("install", str(sdist))
    code = "import npucoll; print(npucoll.init().allreduce(1.0))"
    done = environment.npucoll("run", "-n", "2", "python", "-c", code, cwd=tmp_path, PATH=_path(environment))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2.0") == 2


def _path(environment):
    return f"{environment.bin}{os.pathsep}{os.environ['PATH']}"
