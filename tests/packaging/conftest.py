"""Clean environments, made from the wheels in the directory that NPUCOLL_DIST names (``make wheels`` fills dist/)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from environments import Environment


@pytest.fixture(scope="session")
def dist():
    place = os.environ.get("NPUCOLL_DIST")
    if not place:
        pytest.skip("NPUCOLL_DIST does not name a directory of wheels; make test sets it")
    return Path(place)


@pytest.fixture(scope="session")
def installed(dist, tmp_path_factory):
    """The Keras mode as a user installs it, without TensorFlow."""
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.pip("install", "--find-links", str(dist), "npucoll[keras]")
    return environment


@pytest.fixture
def bare(dist, installed, tmp_path):
    """The wheels alone; what they depend on is borrowed from ``installed``."""
    environment = Environment(tmp_path / "venv")
    environment.pip("install", "--no-deps", *map(str, dist.glob("*.whl")))
    environment.borrow = lambda site: (environment.site / "borrowed.pth").write_text(f"{site}\n")
    environment.borrow(installed.site)
    return environment
