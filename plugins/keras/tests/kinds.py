"""The Kerases that the tests train with, and one small model and its data for all of them."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

STEPS, ROWS, FEATURES = 20, 8, 6


def available():
    """Return the kinds of Keras in this Python; TensorFlow 1.15 counts twice, as it is with and without eager mode."""
    if sys.version_info < (3, 8):
        return ["graph", "eager"]
    from importlib import metadata

    tf_keras = ["tf_keras"] if importlib.util.find_spec("tf_keras") else []
    if metadata.version("keras").startswith("2."):
        # tf_keras is the same Keras once more.
        return ["tf.keras", "tf.keras legacy", *tf_keras]
    return ["tf.keras", *tf_keras, *(f"{one} legacy" for one in tf_keras)]


def only(*kinds):
    """Return those of ``kinds`` that are available, for a test that the others cannot have."""
    found = [kind for kind in available() if kind in kinds]
    reason = f"needs one of: {', '.join(kinds)}"
    return found or [pytest.param(kinds[0], marks=pytest.mark.skip(reason=reason))]


class Kind:
    """One Keras in a rank: its modules, and what is called differently in it."""

    def __init__(self, name):
        import tensorflow as tf

        tf.compat.v1.logging.set_verbosity("ERROR")
        if name == "eager":
            tf.compat.v1.enable_eager_execution()
        self.name, self.tf, self.keras = name, tf, tf.keras
        if name.startswith("tf_keras"):
            import tf_keras

            self.keras = tf_keras
        self.optimizers = self.keras.optimizers.legacy if name.endswith("legacy") else self.keras.optimizers
        self.keras3 = hasattr(self.keras.optimizers.Optimizer, "stateless_apply")
        self.tf1 = name in ("graph", "eager")
        self.keras.backend.clear_session()

    def optimizer(self, name):
        return {
            "sgd": lambda: self.optimizers.SGD(0.1),
            "momentum": lambda: self.optimizers.SGD(0.05, momentum=0.9),
            "clipped": lambda: self.optimizers.SGD(0.1, clipnorm=0.01),
            "adam": lambda: self.optimizers.Adam(0.01),
            "tf.train": lambda: self.tf.compat.v1.train.AdamOptimizer(0.01),
        }[name]()

    def weights(self, seed):
        """Return an initializer that makes the same numbers for the same seed and shape, in every Keras."""
        tf = self.tf

        def initialize(shape, dtype=None, **_):
            return tf.constant(np.random.RandomState(seed).normal(scale=0.5, size=shape), dtype or tf.float32)

        return initialize

    def dense(self, units, seed, **options):
        return self.keras.layers.Dense(
            units, kernel_initializer=self.weights(seed), bias_initializer=self.weights(seed + 1), **options
        )

    def model(self, seed, inputs=FEATURES):
        """Return a model whose weights depend on ``seed``."""
        x = self.keras.Input((inputs,))
        return self.keras.Model(x, self.dense(2, seed + 2)(self.dense(5, seed, activation="tanh")(x)))

    def loss(self):
        return self.keras.losses.MeanSquaredError()

    def values(self, model):
        """Return all of the model's and its optimizer's variables as arrays."""
        from npucoll_keras.variables import model_variables

        found = model_variables(model)
        if self.name == "graph":
            return self.keras.backend.batch_get_value(found)
        return [variable.numpy() for variable in found]


def make_data():
    """Return features and labels, STEPS batches of ROWS."""
    random = np.random.RandomState(3)
    x = random.normal(size=(STEPS, ROWS, FEATURES)).astype(np.float32)
    return x, np.stack([x.sum(axis=2), np.sin(x[:, :, 0])], axis=2).astype(np.float32)


def share(array, rank, size):
    """Return ``rank``'s rows of every batch, as one array with its batches one after another."""
    part = array[:, rank::size]
    return np.ascontiguousarray(part.reshape((-1, *part.shape[2:])))


def assert_equal(got, expected, rtol=1e-5, atol=1e-6):
    assert len(got) == len(expected)
    for one, other in zip(got, expected):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
