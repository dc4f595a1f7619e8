"""Handwritten digits with Keras, on several processes.

Run it on two processes, with TensorFlow 1.15, 2.15 or a current one::

    npucoll run -n 2 examples/keras_digits.py

Every rank trains on its own digits (``dataset.shard``), the wrapped optimizer averages the gradients, and the callback
gives all ranks the first one's weights to begin with. Alone (``python examples/keras_digits.py``) it runs as well.
"""

from __future__ import annotations

import os
import time
from typing import Tuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import npucoll  # TensorFlow reads the variable above when it is imported

npu = npucoll.enable("keras")

import tensorflow as tf  # noqa: E402 - npucoll comes first, as the guide has it

BATCH, EPOCHS = 64, 15


def load_data() -> Tuple[Tuple[np.ndarray, np.ndarray], Tuple[np.ndarray, np.ndarray]]:
    """Return 1437 images of 8 x 8 pixels, each as 64 numbers from 0 to 1, with their digits; and 360 more for tests."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    images, digits = (images[order] / 16).astype(np.float32), digits[order].astype(np.int64)
    return (images[:1437], digits[:1437]), (images[1437:], digits[1437:])


def make_model() -> tf.keras.Model:
    """Return an untrained classifier; its weights are random, and other ones on every rank."""
    pixels = tf.keras.Input((64,))
    hidden = tf.keras.layers.Dense(128, activation="relu")(pixels)
    return tf.keras.Model(pixels, tf.keras.layers.Dense(10, activation="softmax")(hidden))


def main() -> None:
    """Train, and say how well and whether the ranks agree."""
    rank, size = npu.get_rank_id(), npu.get_rank_size()
    train, test = load_data()

    dataset = tf.data.Dataset.from_tensor_slices(train)
    # The same part of the digits in every epoch, in another order; all ranks together see BATCH of them in a step.
    dataset = dataset.shard(size, rank).shuffle(len(train[0])).repeat().batch(max(1, BATCH // size))

    model = make_model()
    optimizer = npu.npu_distributed_optimizer_wrapper(tf.keras.optimizers.Adam(0.003))
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    start = time.perf_counter()
    model.fit(
        dataset,
        steps_per_epoch=len(train[0]) // BATCH,
        epochs=EPOCHS,
        verbose=2 if rank == 0 else 0,
        callbacks=[npu.NPUBroadcastGlobalVariablesCallback(0)],
    )
    seconds = time.perf_counter() - start

    accuracy = np.mean(model.predict(test[0], verbose=0).argmax(axis=1) == test[1])
    npucoll.communicator().assert_in_sync(model.get_weights())
    if rank == 0:
        print(f"accuracy on held-out digits {accuracy:.3f}, {seconds:.1f} s, all {size} ranks hold the same weights")


if __name__ == "__main__":
    main()
