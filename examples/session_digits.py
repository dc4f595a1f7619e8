"""Handwritten digits with a ``tf.train`` optimizer in a session, on several processes.

Run it on two processes, with TensorFlow 1.15 or any 2.x::

    npucoll run -n 2 examples/session_digits.py

Every rank trains on its own digits (``dataset.shard``), the wrapped optimizer averages the gradients, and the broadcast
gives all ranks the first one's weights to begin with. Alone (``python examples/session_digits.py``) it runs as well.
"""

from __future__ import annotations

import os
import time
from typing import Any, Tuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import npucoll  # TensorFlow reads the variable above when it is imported

npu = npucoll.enable("tf1")

import tensorflow.compat.v1 as tf  # noqa: E402 - npucoll comes first, as the guide has it

BATCH, STEPS = 128, 300


def load_data() -> Tuple[Tuple[np.ndarray, np.ndarray], Tuple[np.ndarray, np.ndarray]]:
    """Return 1437 images of 8 x 8 pixels, as 64 numbers from 0 to 1 each, and their digits; then 360 to test with."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images, digits = (images[order] / 16).astype(np.float32), digits[order].astype(np.int64)
    return (images[:1437], digits[:1437]), (images[1437:], digits[1437:])


def layer(name: str, x: Any, units: int) -> Any:
    """Return x @ weights + bias."""
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [int(x.shape[1]), units])
        return tf.matmul(x, weights) + tf.get_variable("bias", [units], initializer=tf.zeros_initializer())


def main() -> None:
    """Train, test, and check that the ranks agree."""
    tf.disable_eager_execution()
    rank, size = npu.get_rank_id(), npu.get_rank_size()
    train, test = load_data()

    dataset = tf.data.Dataset.from_tensor_slices(train)
    # The same part of the digits in every epoch, in another order.
    dataset = dataset.shard(size, rank).shuffle(len(train[0])).repeat().batch(BATCH // size)
    images, digits = tf.data.make_one_shot_iterator(dataset).get_next()

    images = tf.placeholder_with_default(images, [None, 64])
    logits = layer("output", tf.nn.relu(layer("hidden", images, 128)), 10)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=digits, logits=logits))
    step = tf.train.get_or_create_global_step()
    optimizer = npu.npu_distributed_optimizer_wrapper(tf.train.AdamOptimizer(0.003))
    train_op = optimizer.minimize(loss, global_step=step)
    # After everything that makes variables.
    bcast_op = npu.broadcast_global_variables(0)

    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(bcast_op)
        start = time.perf_counter()
        for number in range(1, STEPS + 1):
            _, value = session.run([train_op, loss])
            if rank == 0 and number % 50 == 0:
                print(f"step {number:3d}  loss {value:.4f}", flush=True)
        seconds = time.perf_counter() - start

        accuracy = np.mean(session.run(logits, {images: test[0]}).argmax(axis=1) == test[1])
        weights = {variable.name: session.run(variable) for variable in tf.global_variables()}
    npucoll.communicator().assert_in_sync(weights)
    if rank == 0:
        print(f"accuracy on held-out digits {accuracy:.3f}, {seconds:.1f} s, all {size} ranks hold the same weights")


if __name__ == "__main__":
    main()
