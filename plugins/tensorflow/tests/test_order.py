"""Many collectives of one graph, built, ready and fetched in another order on every rank."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf

import npucoll
import npucoll_tensorflow as npt

v1 = tf.compat.v1
COUNT = 64


def _sizes():
    """Return 64 different sizes, from a scalar's to some that take the engine's long way."""
    chooser = random.Random(7)
    return sorted(chooser.sample(range(1, 4000), COUNT - 4)) + [20_001, 50_002, 100_003, 200_004]


def _build(chooser, data, rank):
    """Build the 64 sums in an order of this rank, each behind a chain of its own length; return them by place."""
    places = list(range(COUNT))
    chooser.shuffle(places)
    sums = {}
    ground = tf.fill([48, 48], data[0] * 0.0)
    for place in places:
        link = ground
        for _ in range(chooser.randrange(4)):
            link = tf.matmul(link, link)
        size = _sizes()[place]
        own = tf.range(size) % 13
        sums[place] = npt.allreduce(tf.cast(own, tf.float32) + float(rank) * place + data[0] + link[0, 0])
    return sums


def _check(place, value, step, ranks):
    size = _sizes()[place]
    expected = ranks * ((np.arange(size) % 13).astype(np.float32) + step) + place * sum(range(ranks))
    np.testing.assert_array_equal(value, expected)


def _session(steps, seed):
    comm = npucoll.init()
    chooser = random.Random(1000 * seed + comm.rank)
    with tf.Graph().as_default():
        data = v1.placeholder(tf.float32, [1])
        sums = _build(chooser, data, comm.rank)
        for node in v1.get_default_graph().get_operations():
            assert not (node.type == "NpucollAllreduce" and node.control_inputs)
        with v1.Session() as session:
            for step in range(steps):
                places = list(range(COUNT))
                chooser.shuffle(places)
                values = session.run([sums[place] for place in places], {data: [step]})
                for place, value in zip(places, values):
                    _check(place, value, step, comm.size)


def _function(steps, seed):
    comm = npucoll.init()
    chooser = random.Random(2000 * seed + comm.rank)
    if not tf.executing_eagerly():
        return _function_of_a_graph(steps, chooser, comm)

    @tf.function
    def run(data):
        return _build(chooser, data, comm.rank)

    for step in range(steps):
        for place, value in run(tf.constant([float(step)])).items():
            _check(place, value.numpy(), step, comm.size)
    return None


def _function_of_a_graph(steps, chooser, comm):
    with tf.Graph().as_default():
        data = v1.placeholder(tf.float32, [1])
        sums = tf.function(lambda given: _build(chooser, given, comm.rank))(data)
        with v1.Session() as session:
            for step in range(steps):
                for place, value in session.run(sums, {data: [step]}).items():
                    _check(place, value, step, comm.size)


@pytest.mark.parametrize("threads", ["one", "default"], ids=["one thread", "default threads"])
@pytest.mark.parametrize("program", [_session, _function], ids=["session", "function"])
@pytest.mark.parametrize("n", [2], ids=["2 ranks"])
def test_any_order(ranks, steps, n, program, threads):
    ranks(n, program, steps, 1, threads=threads, timeout=120 + steps)
