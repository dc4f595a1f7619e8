"""What is saved of a model with a wrapped optimizer is the plain model: it loads and trains on without npucoll."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import FEW_THREADS
from kinds import Kind, available, make_data

LOAD = """
import sys
sys.modules["npucoll"] = sys.modules["npucoll_keras"] = sys.modules["npucoll_tensorflow"] = None
import numpy as np
kind, *paths = sys.argv[1:]
import tensorflow as tf
if kind == "eager":
    tf.compat.v1.enable_eager_execution()
if kind.startswith("tf_keras"):
    import tf_keras as keras
else:
    keras = tf.keras
expected = np.load(paths.pop(0), allow_pickle=True)
for path in paths:
    model = keras.models.load_model(path)
    assert type(model.optimizer).__name__ == "Adam", type(model.optimizer)
    assert "npucoll" not in type(model.optimizer).__module__
    for got, saved in zip(model.get_weights(), [expected[name] for name in sorted(expected.files)]):
        np.testing.assert_array_equal(got, saved)
    before = [weight.copy() for weight in model.get_weights()]
    model.fit(np.ones((4, 6), "float32"), np.ones((4, 2), "float32"), verbose=0)
    assert not np.array_equal(before[0], model.get_weights()[0])
    print("loaded", path)
"""


def formats(kind):
    """Return the endings of files that this Keras saves to and loads from; "" is a SavedModel."""
    if kind in ("graph", "eager"):
        return [".h5"]
    if kind == "tf.keras" and not _keras2():
        # What is wrong with .h5 there is wrong without npucoll too: a loaded optimizer does not know the weights.
        return [".keras"]
    # A SavedModel with a legacy optimizer does not load, with or without npucoll, where both Kerases were imported.
    return [".keras", ".h5"] if kind.endswith("legacy") else [".keras", ".h5", ""]


def _keras2():
    from importlib import metadata

    return metadata.version("keras").startswith("2.")


def save(name, directory, endings):
    import numpy as np

    import npucoll

    npu = npucoll.enable("keras")
    kind = Kind(name)
    keras = kind.keras
    model = keras.Sequential([keras.layers.Dense(3, input_shape=(6,)), keras.layers.Dense(2)])
    model.compile(npu.npu_distributed_optimizer_wrapper(kind.optimizer("adam")), kind.loss())
    x, y = make_data()
    model.fit(x[0], y[0], verbose=0, callbacks=[npu.NPUBroadcastGlobalVariablesCallback(0)])
    if npu.get_rank_id() == 0:
        for ending in endings:
            model.save(os.path.join(directory, "model" + ending))
        np.savez(os.path.join(directory, "weights.npz"), *model.get_weights())
    npucoll.communicator().barrier()
    # Loaded where npucoll is, it can be wrapped again and goes on.
    loaded = keras.models.load_model(os.path.join(directory, "model" + endings[0]))
    npu.npu_distributed_optimizer_wrapper(loaded.optimizer)
    loaded.fit(x[1], y[1], verbose=0, callbacks=[npu.NPUBroadcastGlobalVariablesCallback(0)])
    npucoll.communicator().assert_in_sync(loaded.get_weights())


@pytest.mark.parametrize("kind", [kind for kind in available() if kind != "tf_keras legacy"])
def test_a_saved_model_is_plain(ranks, kind, tmp_path):
    endings = formats(kind)
    ranks(2, kind, save, str(tmp_path), endings)
    paths = [str(tmp_path / "weights.npz")] + [str(tmp_path / ("model" + ending)) for ending in endings]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD, kind, *paths],
        env={**os.environ, **FEW_THREADS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("loaded") == len(endings)
