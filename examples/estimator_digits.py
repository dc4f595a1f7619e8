"""Handwritten digits with an Estimator, on several processes that share one directory for checkpoints.

Run it on two processes, with TensorFlow 1.15 or 2.15::

    npucoll run -n 2 examples/estimator_digits.py

``model_fn`` wraps its optimizer, and that is all: NPUEstimator gives all ranks the first one's weights, and has the
first one alone write checkpoints, which every rank then reads. Alone (``python examples/estimator_digits.py``) it runs
as well.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any, Callable, Dict, Tuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import npucoll  # TensorFlow reads the variable above when it is imported

npu = npucoll.enable("estimator")

import tensorflow.compat.v1 as tf  # noqa: E402 - npucoll comes first, as the guide has it

BATCH, STEPS = 128, 300

Digits = Tuple[np.ndarray, np.ndarray]


def load_data() -> Tuple[Digits, Digits]:
    """Return 1437 images of 8 x 8 pixels, as 64 numbers from 0 to 1 each, and their digits; then 360 to test with."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images, digits = (images[order] / 16).astype(np.float32), digits[order].astype(np.int64)
    return (images[:1437], digits[:1437]), (images[1437:], digits[1437:])


def train_input(digits: Digits) -> Callable[[], Any]:
    """Return the input of training: this rank's part of the digits, again and again."""

    def input_fn() -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(digits)
        dataset = dataset.shard(npu.get_rank_size(), npu.get_rank_id())
        return dataset.shuffle(len(digits[0])).repeat().batch(BATCH // npu.get_rank_size())

    return input_fn


def test_input(digits: Digits) -> Callable[[], Any]:
    """Return the input of evaluation: all digits, once."""
    return lambda: tf.data.Dataset.from_tensor_slices(digits).batch(len(digits[0]))


def layer(name: str, x: Any, units: int) -> Any:
    """Return x @ weights + bias."""
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [int(x.shape[1]), units])
        return tf.matmul(x, weights) + tf.get_variable("bias", [units], initializer=tf.zeros_initializer())


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    """Build the model for training or evaluation."""
    logits = layer("output", tf.nn.relu(layer("hidden", features, 128)), 10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == tf.estimator.ModeKeys.EVAL:
        accuracy = tf.metrics.accuracy(labels, tf.argmax(logits, axis=1))
        return npu.NPUEstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    optimizer = npu.npu_distributed_optimizer_wrapper(tf.train.AdamOptimizer(0.003))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    return npu.NPUEstimatorSpec(mode, loss=loss, train_op=train_op)


class Weights(tf.train.SessionRunHook):
    """Shows the progress on rank 0, and keeps every rank's own weights of the end."""

    def __init__(self) -> None:
        self.last: Dict[str, np.ndarray] = {}
        self._step = 0

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(tf.get_collection(tf.GraphKeys.LOSSES)[-1])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._step += 1
        if npu.get_rank_id() == 0 and self._step % 50 == 0:
            print(f"step {self._step:3d}  loss {run_values.results:.4f}", flush=True)

    def end(self, session: Any) -> None:
        self.last = {variable.name: session.run(variable) for variable in tf.global_variables()}


def main() -> None:
    """Train, test, and check that the ranks agree."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    comm = npucoll.communicator()
    train, test = load_data()
    with tempfile.TemporaryDirectory() as own:
        # Every rank uses the directory of rank 0.
        directory = comm.broadcast_object(own)
        config = npu.NPURunConfig(model_dir=directory, save_checkpoints_secs=3600)
        estimator = npu.NPUEstimator(model_fn, config=config)
        weights = Weights()
        start = time.perf_counter()
        estimator.train(train_input(train), max_steps=STEPS, hooks=[weights])
        seconds = time.perf_counter() - start
        accuracy = estimator.evaluate(test_input(test))["accuracy"]
        comm.assert_in_sync(weights.last)
        comm.barrier()
    if comm.rank == 0:
        print(
            f"accuracy on held-out digits {accuracy:.3f}, {seconds:.1f} s, all {comm.size} ranks hold the same weights"
        )


if __name__ == "__main__":
    main()
