"""The three ways to run a collective: eagerly, in a tf.function, in a graph that a session runs."""

from __future__ import annotations

import tensorflow as tf

v1 = tf.compat.v1

# TensorFlow 1.15 runs functions inside a session's graph, and is eager only where a program says so when it starts.
STYLES = ["session", "function"] if tf.__version__.startswith("1.") else ["session", "function", "eager"]


def evaluate(style, build, *arrays):
    """Return the NumPy results of ``build``, a function from tensors to a list of tensors."""
    if style == "eager":
        return [value.numpy() for value in build(*[tf.constant(array) for array in arrays])]
    if style == "function" and tf.executing_eagerly():
        return [value.numpy() for value in tf.function(build)(*[tf.constant(array) for array in arrays])]
    with tf.Graph().as_default():
        inputs = [v1.placeholder(array.dtype, array.shape) for array in arrays]
        outputs = (tf.function(build) if style == "function" else build)(*inputs)
        with v1.Session() as session:
            return session.run(list(outputs), dict(zip(inputs, arrays)))
