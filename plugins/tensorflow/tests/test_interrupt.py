"""Ctrl-C inside a collective, and kernels that must wait in TensorFlow's own threads."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from styles import STYLES, evaluate

import npucoll
import npucoll_tensorflow as npt

v1 = tf.compat.v1


def _interrupt(style):
    comm = npucoll.init()
    x = np.ones([3], np.float32)
    evaluate(style, lambda t: [npt.allreduce(t)], x)
    comm.barrier()
    if comm.rank == 0:
        pressed = []

        def press():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(1.0, press)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            evaluate(style, lambda t: [npt.allreduce(t, name="never")], x)
        seconds = time.monotonic() - pressed[0]
        timer.join()
        assert seconds < 1.5, seconds
    else:
        with pytest.raises(npucoll.PeerLost, match="interrupt"):
            comm.barrier()
    npucoll.shutdown()
    # What comes after it is not affected, however soon.
    comm = npucoll.init()
    if comm.rank == 1:
        time.sleep(0.5)
    np.testing.assert_array_equal(evaluate(style, lambda t: [npt.allreduce(t)], x), [x * comm.size])


def _waiting_inside():
    """Where nothing is known of TensorFlow's callbacks, one collective at a time works, and more fail in words."""
    from npucoll_tensorflow import library

    comm = npucoll.init()
    library.load().wait_inside(True)
    try:
        for style in STYLES:
            got = evaluate(style, lambda t: npt.grouped_allreduce([t, t * 2.0]), np.ones([3], np.float32))
            np.testing.assert_array_equal(got, [np.full(3, comm.size), np.full(3, 2 * comm.size)])
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [2])
            with tf.control_dependencies([npt.allreduce(x)]):
                second = npt.allreduce(x * 2.0)
            with v1.Session() as session:
                np.testing.assert_array_equal(session.run(second, {x: [1, 2]}), np.float32([2, 4]) * comm.size)
    finally:
        library.load().wait_inside(False)


@pytest.mark.parametrize("style", STYLES)
def test_interrupt(ranks, style):
    ranks(2, _interrupt, style, timeout=60)


def test_waiting_inside(ranks):
    ranks(2, _waiting_inside)
