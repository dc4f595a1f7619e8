"""The compiled library, and the way back from TensorFlow's errors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import tensorflow as tf

import npucoll
import npucoll_tensorflow as npt
from npucoll_tensorflow import errors, library


def test_kernels_are_asynchronous():
    # Where they are not, collectives in different orders fail; every TensorFlow that is tested has a way.
    hand_made = tf.__version__.startswith("1.")
    assert library.load().mode == ("asynchronous (hand-made)" if hand_made else "asynchronous")


def test_library_needs_nothing_of_tensorflow_or_python():
    """One file serves every TensorFlow and Python: it opens where there is no TensorFlow, and says so."""
    path = os.path.join(os.path.dirname(library.__file__), "_ops.abi3.so")
    with open(path, "rb") as file:
        content = file.read()
    assert b"libtensorflow_framework.so.2" in content  # looked for by name
    assert b"libpython" not in content and b"Py_" not in content and b"GLIBCXX" not in content
    code = (
        f"import ctypes; library = ctypes.CDLL({path!r}); library.npt_problem.restype = ctypes.c_char_p; "
        "print(library.npt_problem())"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, timeout=60).stdout
    assert b"this process's TensorFlow has no TF_" in said


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("npucoll.MismatchError: a and b [[node x]]", npucoll.MismatchError, "a and b"),
        (
            "Graph execution error:\n\nnpucoll.PeerLost: rank 1 [x] left\n\t [[{{node y}}]] [Op:f]",
            npucoll.PeerLost,
            "rank 1 [x] left",
        ),
        ("{{function_node f}} npucoll.CollectiveTimeout: late [Op:N] name: ", npucoll.CollectiveTimeout, "late"),
        ("assertion failed: [npucoll.ConfigError: not a, b]\n", npucoll.ConfigError, "not a, b"),
    ],
)
def test_translate(text, error, said):
    found = npt.translate(tf.errors.InternalError(None, None, text))
    assert type(found) is error and str(found) == said


def test_what_is_not_ours_stays():
    assert npt.translate(ValueError("npucoll is mentioned")) is None
    assert npt.translate(tf.errors.InternalError(None, None, "npucoll.Nothing: x")) is None
    mine = npucoll.PeerLost("gone")
    assert npt.translate(mine) is mine
    with pytest.raises(ZeroDivisionError), errors.translated():
        raise ZeroDivisionError


def test_names_are_public_and_lazy():
    assert all(callable(getattr(npt, name)) for name in npt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'allredcue'"):
        npt.allredcue  # noqa: B018 - the look itself is the test


def test_graph_before_init():
    with tf.Graph().as_default():
        assert npt.allreduce(tf.ones([3])).shape.as_list() == [3]
