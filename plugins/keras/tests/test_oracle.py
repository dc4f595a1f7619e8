"""Training on several ranks is training in one process on the whole batch, in every way to train."""

from __future__ import annotations

import numpy as np
import pytest
from kinds import STEPS, Kind, assert_equal, available, make_data, only, share


class Job:
    """One training: on this rank's share with a wrapped optimizer, or alone on the whole batch with a plain one."""

    def __init__(self, kind, optimizer, seed, rank, size, npu):
        self.kind, self.keras, self.tf, self.npu = kind, kind.keras, kind.tf, npu
        x, y = make_data()
        self.x, self.y = share(x, rank, size), share(y, rank, size)
        self.batch, self.seed = x.shape[1] // size, seed
        self.name, self.optimizer = optimizer, kind.optimizer(optimizer)

    def wrapped(self, optimizer):
        return optimizer if self.npu is None else self.npu.npu_distributed_optimizer_wrapper(optimizer)

    def callbacks(self):
        return [] if self.npu is None else [self.npu.NPUBroadcastGlobalVariablesCallback(self.root)]

    def broadcast(self, variables):
        if self.npu is not None:
            operation = self.npu.broadcast_variables(variables, self.root)
            if self.kind.name == "graph":
                self.tf.compat.v1.keras.backend.get_session().run(operation)

    def fit(self, model, start=0, stop=STEPS, **options):
        rows = slice(start * self.batch, stop * self.batch)
        model.fit(
            self.x[rows],
            self.y[rows],
            batch_size=self.batch,
            shuffle=False,
            verbose=0,
            callbacks=self.callbacks(),
            **options,
        )

    def batches(self):
        for step in range(STEPS):
            rows = slice(step * self.batch, (step + 1) * self.batch)
            yield self.x[rows], self.y[rows]


def fit(job, **options):
    model = job.kind.model(job.seed)
    model.compile(job.wrapped(job.optimizer), job.kind.loss(), **options)
    job.fit(model)
    return model


def fit_eagerly(job):
    return fit(job, run_eagerly=True)


def fit_several_steps_at_once(job):
    return fit(job, steps_per_execution=4)


def fit_twice(job):
    model = job.kind.model(job.seed)
    model.compile(job.wrapped(job.optimizer), job.kind.loss())
    job.fit(model, 0, STEPS // 2)
    job.fit(model, STEPS // 2)
    return model


def wrap_after_compile(job):
    model = job.kind.model(job.seed)
    model.compile(job.optimizer, job.kind.loss())
    assert job.wrapped(job.optimizer) is job.optimizer
    job.wrapped(model.optimizer)
    job.fit(model)
    return model


def fit_without_input_shape(job):
    model = job.keras.Sequential([job.kind.dense(5, job.seed, activation="tanh"), job.kind.dense(2, job.seed + 2)])
    model.compile(job.wrapped(job.optimizer), job.kind.loss())
    job.fit(model)
    return model


def fit_subclass(job, **options):
    class Model(job.keras.Model):
        def __init__(self):
            super().__init__()
            self.first = job.kind.dense(5, job.seed, activation="tanh")
            self.second = job.kind.dense(2, job.seed + 2)

        def call(self, inputs):
            return self.second(self.first(inputs))

    model = Model()
    model.compile(job.wrapped(job.optimizer), job.kind.loss(), **options)
    job.fit(model)
    return model


def fit_subclass_eagerly(job):
    return fit_subclass(job, run_eagerly=True)


def custom_train_step(job):
    tf = job.tf
    loss = job.kind.loss()

    class Model(job.keras.Model):
        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape() as tape:
                value = loss(y, self(x, training=True))
            gradients = tape.gradient(value, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": value}

    inner = job.kind.model(job.seed)
    model = Model(inner.inputs, inner.outputs)
    model.compile(job.wrapped(job.optimizer))
    job.fit(model)
    return model


def two_optimizers(job):
    """A model without call(), with an optimizer for each of its parts."""
    tf, kind = job.tf, job.kind
    loss = kind.loss()

    class Model(job.keras.Model):
        def __init__(self, first, second):
            super().__init__()
            self.first, self.second = first, second

        def compile(self, first_optimizer, second_optimizer):
            super().compile()
            self.first_optimizer, self.second_optimizer = first_optimizer, second_optimizer

        def train_step(self, data):
            x, y = data[:2]
            with tf.GradientTape(persistent=True) as tape:
                middle = self.first(x)
                value = loss(y, self.second(middle)) + tf.reduce_mean(tf.square(middle))
            for part, optimizer in ((self.first, self.first_optimizer), (self.second, self.second_optimizer)):
                gradients = tape.gradient(value, part.trainable_variables)
                optimizer.apply_gradients(zip(gradients, part.trainable_variables))
            return {"loss": value}

    model = Model(kind.model(job.seed), kind.model(job.seed + 10, inputs=2))
    model.compile(job.wrapped(job.optimizer), job.wrapped(kind.optimizer("momentum")))
    job.fit(model)
    return model


def train_on_batch(job):
    model = job.kind.model(job.seed)
    model.compile(job.wrapped(job.optimizer), job.kind.loss())
    job.broadcast(model.weights)
    for x, y in job.batches():
        model.train_on_batch(x, y)
    return model


def tape_loop(job, decorate=None):
    tf = job.tf
    model, loss, optimizer = job.kind.model(job.seed), job.kind.loss(), job.wrapped(job.optimizer)
    model.optimizer = optimizer
    job.broadcast(model.weights)

    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))

    if decorate is not None:
        step = decorate(step)
    for x, y in job.batches():
        step(tf.constant(x), tf.constant(y))
    return model


def tape_loop_in_function(job):
    return tape_loop(job, job.tf.function)


def minimize(job):
    tf = job.tf
    model, loss, optimizer = job.kind.model(job.seed), job.kind.loss(), job.wrapped(job.optimizer)
    model.optimizer = optimizer
    job.broadcast(model.weights)
    for x, y in job.batches():
        optimizer.minimize(
            lambda x=x, y=y: loss(tf.constant(y), model(tf.constant(x), training=True)), model.trainable_weights
        )
    return model


def sparse_gradients(job):
    """Embeddings have IndexedSlices as gradients; rows occur twice, and other ones on every rank."""
    kind, tf = job.kind, job.tf
    words = job.keras.Input((3,), dtype="int32")
    if kind.keras3 and job.npu is None:
        # Plain Keras 3 does not add up the rows of an index before it squares them, so compare with a dense gradient.
        ones = job.keras.layers.Lambda(lambda index: tf.one_hot(index, 7), output_shape=(3, 7))(words)
        rows = job.keras.layers.Dense(4, use_bias=False, kernel_initializer=kind.weights(job.seed))(ones)
    else:
        rows = job.keras.layers.Embedding(7, 4, embeddings_initializer=kind.weights(job.seed))(words)
    model = job.keras.Model(words, kind.dense(2, job.seed + 1)(job.keras.layers.Flatten()(rows)))
    model.compile(job.wrapped(job.optimizer), kind.loss())
    job.x = (np.abs(job.x[:, :3]) * 3).astype(np.int32) % 7
    job.fit(model)
    return model


WAYS = {way.__name__: way for way in list(globals().values()) if getattr(way, "__module__", None) == __name__}


def like_one_process(kind, cases, root=0):
    """Train in every way of ``cases``, with different weights on each rank, and compare with one process."""
    import npucoll

    npu = npucoll.enable("keras")
    comm = npucoll.communicator()
    for way, optimizer in cases:
        opened = Kind(kind)
        job = Job(opened, optimizer, 100 * (1 + comm.rank), comm.rank, comm.size, npu)
        job.root = root
        model = WAYS[way](job)
        alone = Job(opened, optimizer, 100 * (1 + root), 0, 1, None)
        expected = WAYS[way](alone)
        got = opened.values(model)
        try:
            assert_equal(got, opened.values(expected))
        except AssertionError as error:
            raise AssertionError(f"{way}, {optimizer}, {kind}: {error}") from None
        comm.assert_in_sync(got)
        assert any(np.array_equal(value, STEPS) for value in got if value.dtype == np.int64), "iterations"


def ways(kind):
    """Return the ways to train that there are in ``kind``, each with an optimizer."""
    if kind in ("graph", "eager"):
        found = [("fit_twice", "adam"), ("wrap_after_compile", "momentum"), ("fit_without_input_shape", "adam")]
        found += [("fit_subclass", "adam"), ("train_on_batch", "momentum"), ("sparse_gradients", "adam")]
        found += [("fit", "clipped")]
        if kind == "eager":
            found += [("tape_loop", "adam"), ("tape_loop_in_function", "momentum"), ("fit_eagerly", "momentum")]
            found += [("minimize", "adam"), ("minimize", "clipped")]
        return found
    found = [("fit_subclass", "adam"), ("tape_loop", "adam"), ("custom_train_step", "adam")]
    if kind == "tf.keras":
        found += [("fit_twice", "adam"), ("wrap_after_compile", "momentum"), ("fit_without_input_shape", "adam")]
        found += [("train_on_batch", "momentum"), ("sparse_gradients", "adam"), ("fit", "clipped")]
        found += [("tape_loop_in_function", "momentum"), ("fit_eagerly", "momentum"), ("two_optimizers", "adam")]
        found += [("fit_several_steps_at_once", "momentum"), ("fit_subclass_eagerly", "momentum")]
    return found


@pytest.mark.parametrize("kind", available())
@pytest.mark.parametrize("n", [2])
def test_optimizers_are_like_one_process(ranks, n, kind):
    ranks(n, kind, like_one_process, [("fit", "sgd"), ("fit", "momentum"), ("fit", "adam")])


@pytest.mark.parametrize("kind", available()[:1])
@pytest.mark.parametrize("n", [4])
def test_four_ranks_are_like_one_process(ranks, n, kind):
    ranks(n, kind, like_one_process, [("fit", "sgd"), ("fit", "momentum"), ("fit", "adam")], 3)


@pytest.mark.parametrize("kind", [kind for kind in available() if kind != "tf_keras legacy"])
@pytest.mark.parametrize("n", [2])
def test_ways_to_train_are_like_one_process(ranks, n, kind):
    ranks(n, kind, like_one_process, ways(kind), 1)


@pytest.mark.parametrize("kind", only("graph", "eager", "tf.keras legacy"))
@pytest.mark.parametrize("n", [2])
def test_tf_train_optimizers_in_keras(ranks, n, kind):
    ranks(n, kind, like_one_process, [("fit", "tf.train")])
