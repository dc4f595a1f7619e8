"""Data-parallel stochastic gradient descent in NumPy: the whole idea of npucoll in one page.

Run it on two processes::

    npucoll run -n 2 examples/numpy_sgd.py

Every rank takes its own rows of each batch, computes the gradient of a softmax regression there, and averages it with
the other ranks' (``allreduce``). All ranks then make the same step, so they stay equal; and the mean over ranks of the
means over rows is the mean over the whole batch, so the result is what one process would have computed.
"""

from __future__ import annotations

import time

import numpy as np

import npucoll

FEATURES, CLASSES, ROWS, BATCH, STEPS, RATE = 64, 10, 8192, 256, 200, 0.5


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """Return rows around ten random centres, with the number of the centre: the same on every rank."""
    random = np.random.RandomState(7)
    centres = random.normal(size=(CLASSES, FEATURES))
    labels = random.randint(CLASSES, size=ROWS)
    return (centres[labels] + random.normal(size=(ROWS, FEATURES))).astype(np.float32), labels


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean cross entropy of softmax(x @ weights), shape (FEATURES, CLASSES)."""
    logits = x @ weights
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y)


def main() -> None:
    """Train, and say how well and whether the ranks agree."""
    comm = npucoll.init()
    x, y = make_data()
    train, test = slice(0, ROWS // 2), slice(ROWS // 2, ROWS)
    # Ranks start from different weights on purpose; the broadcast makes them equal.
    weights = np.random.RandomState(comm.rank).normal(size=(FEATURES, CLASSES)).astype(np.float32)
    comm.broadcast_(weights, root=0)

    start = time.perf_counter()
    for step in range(STEPS):
        batch = np.random.RandomState(step).choice(ROWS // 2, BATCH, replace=False)
        mine = batch[comm.rank :: comm.size]
        weights -= RATE * comm.allreduce(gradient(weights, x[train][mine], y[train][mine]), op="mean")
        if comm.rank == 0 and step % 50 == 0:
            print(f"step {step:3d}  accuracy {np.mean((x[test] @ weights).argmax(axis=1) == y[test]):.3f}", flush=True)

    comm.assert_in_sync({"weights": weights})
    if comm.rank == 0:
        accuracy = np.mean((x[test] @ weights).argmax(axis=1) == y[test])
        seconds = time.perf_counter() - start
        print(f"accuracy on held-out rows {accuracy:.3f}, {seconds:.2f} s, all {comm.size} ranks hold the same weights")


if __name__ == "__main__":
    main()
