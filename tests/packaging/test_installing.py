"""What a user sees who installs from the wheels: without TensorFlow, with one that comes later, with another one."""

from __future__ import annotations

import pytest
from environments import ROOT

TRAIN = """
import tensorflow as tf
import npucoll

npu = npucoll.enable("keras")
assert npucoll.enable("keras") is npu
total = npu.allreduce(tf.constant([1.0, 2.0]), "sum")
print("total", total.numpy().tolist(), "on", tf.__version__)
"""


def test_without_tensorflow_one_sentence_says_what_to_install(installed, tmp_path):
    code = """
        import npucoll
        try:
            npucoll.enable("keras")
        except npucoll.PluginError as error:
            print(error)
    """
    done = installed.python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    (sentence,) = done.stdout.splitlines()
    assert sentence.startswith("mode 'keras': ")
    assert "pip install" in sentence
    listed = installed.npucoll("plugins", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "pip install" in listed.stdout


def test_core_works_without_a_framework(installed, tmp_path):
    script = tmp_path / "sum.py"
    script.write_text("import npucoll\nprint('total', npucoll.init().allreduce(npucoll.rank() + 1))\n")
    done = installed.npucoll("run", "-n", "2", str(script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("total 3") == 2


def test_tensorflow_comes_later_and_is_replaced(bare, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    without = bare.npucoll("run", "-n", "2", str(script), cwd=tmp_path)
    assert without.returncode != 0
    rows = [("py311-tfnew", "2.21"), ("py311-tf2.15.1", "2.15.1"), ("py311-tfnew", "2.21")]
    sites = [(next((ROOT / ".venv" / row / "lib").glob("python*/site-packages"), None), found) for row, found in rows]
    sites = [(site, found) for site, found in sites if site and site.parent.name == bare.site.parent.name]
    if len(sites) < 3:
        pytest.skip("the environments of both TensorFlows are not there")
    for site, found in sites:
        bare.borrow(site)
        done = bare.npucoll("run", "-n", "2", str(script), cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count(f"total [2.0, 4.0] on {found}") == 2, done.stdout
