"""What the wrapper accepts, returns and leaves alone; and how training starts."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from kinds import Kind, assert_equal, available, make_data, only, share


def accepts_and_refuses(name):
    import npucoll

    npu = npucoll.enable("keras")
    kind = Kind(name)
    wrap = npu.npu_distributed_optimizer_wrapper
    plain = kind.optimizer("adam")
    optimizer = wrap(optimizer=plain)
    assert optimizer is plain and wrap(optimizer) is optimizer
    assert optimizer.__class__ is type(kind.optimizer("adam"))
    assert isinstance(optimizer, npu.KerasDistributeOptimizer)
    assert not isinstance(kind.optimizer("adam"), npu.KerasDistributeOptimizer)
    assert not isinstance(3, npu.KerasDistributeOptimizer)
    assert npu.KerasDistributeOptimizer(kind.optimizer("sgd"), "NpuKerasOptimizer").__class__.__name__ == "SGD"
    assert isinstance(wrap("adam"), kind.tf.keras.optimizers.Adam)
    with pytest.raises(npucoll.ConfigError, match="adma"):
        wrap("adma")
    for wrong in (3, None, object(), kind.optimizers.Adam):
        with pytest.raises(npucoll.UnsupportedError, match=r"tf_keras.*LossScaleOptimizer"):
            wrap(wrong)
    with pytest.raises(npucoll.UnsupportedError, match="make an object of it"):
        wrap(kind.optimizers.Adam)
    with pytest.raises(npucoll.UnsupportedError, match="clipnorm"):
        npu.KerasDistributeOptimizer(kind.optimizer("sgd"), clipnorm=1.0)


def copies_as_plain(name):
    import npucoll

    npu = npucoll.enable("keras")
    from npucoll_keras.disguise import hook_of

    kind = Kind(name)

    def make():
        return kind.optimizers.Adam(0.02)

    plain, wrapped = make(), npu.npu_distributed_optimizer_wrapper(make())
    serialize = kind.keras.optimizers.serialize
    # Keras numbers the names of optimizers.
    assert {**serialize(wrapped), "name": 0, "config": 0} == {**serialize(plain), "name": 0, "config": 0}
    assert {**wrapped.get_config(), "name": 0} == {**plain.get_config(), "name": 0}
    again = wrapped.__class__.from_config(wrapped.get_config())
    assert hook_of(again) is None and type(again) is type(plain)
    for duplicate in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        try:
            duplicate(plain)
        except Exception:
            continue  # Keras 2.15's new optimizers can neither be copied nor pickled.
        result = duplicate(wrapped)
        assert type(result) is type(plain) and hook_of(wrapped) is not None


def starts_alike(name):
    """One rank has trained and restored, others have not; batch-norm statistics and learning rate come along."""
    import npucoll

    npu = npucoll.enable("keras")
    comm = npucoll.communicator()
    kind = Kind(name)
    keras, root = kind.keras, comm.size - 1

    def make(seed, rate):
        x = keras.Input((6,))
        hidden = keras.layers.BatchNormalization()(kind.dense(5, seed)(x))
        model = keras.Model(x, kind.dense(2, seed + 2)(hidden))
        optimizer = kind.optimizers.SGD(rate, momentum=0.9)
        model.compile(optimizer, kind.loss())
        return model, optimizer

    x, y = make_data()
    x, y = share(x, comm.rank, comm.size), share(y, comm.rank, comm.size)
    model, optimizer = make(comm.rank, 0.01 * (1 + comm.rank))
    if comm.rank == root:
        # This rank's optimizer has slots and has counted steps, and its step was traced.
        model.fit(x, y, epochs=1, batch_size=20, verbose=0)
    npu.npu_distributed_optimizer_wrapper(optimizer)
    model.compile(optimizer, kind.loss())
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not seen:
                seen.append(kind.values(model))

    broadcast = npu.NPUBroadcastGlobalVariablesCallback(root)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[broadcast, Watch()])
    # After a step the statistics of batch norm are each rank's own again; all else is the same to the last bit.
    own = ("moving_mean", "moving_variance")
    from npucoll_keras.variables import model_variables

    shared = [not any(part in variable.name for part in own) for variable in model_variables(model)]
    for values in (seen[0], kind.values(model)):
        comm.assert_in_sync([value for value, keep in zip(values, shared) if keep])
    # The first moving average kept 0.99 of what the root had.
    rate = np.float32(0.01 * (1 + root))
    assert any(value.shape == () and np.allclose(value, rate) for value in seen[0]), "the root's learning rate"
    steps = len(x) // 20 + 1
    assert any(value.dtype == np.int64 and value == steps for value in seen[0]), "the root's iterations"


def broadcasts_by_hand(name):
    import npucoll

    npu = npucoll.enable("keras")
    comm = npucoll.communicator()
    kind = Kind(name)
    model = kind.model(comm.rank)
    if name == "graph":
        session = kind.tf.compat.v1.keras.backend.get_session()
        session.run(npu.broadcast_variables(model.weights, root_rank=1))
    else:
        assert npu.broadcast_variables(model.weights, root_rank=1) is None
    assert_equal(model.get_weights(), kind.model(1).get_weights(), 0, 0)
    if name != "graph":
        mean, none = npu.npu_allreduce([kind.tf.constant([1.0 + comm.rank]), None])
        assert none is None and np.allclose(mean, (comm.size + 1) / 2)
        assert np.allclose(npu.npu_allreduce(kind.tf.constant(2.0), "sum"), 2 * comm.size)
    assert npu.get_rank_size() == comm.size and npu.get_rank_id("hccl_world_group") == comm.rank
    assert npu.get_local_rank_size() == comm.local_size and npu.get_local_rank_id() == comm.local_rank
    with pytest.raises(npucoll.ConfigError, match="'tf1' has groups"):
        npu.get_rank_size("mine")


def refuses_xla(name):
    import npucoll

    npu = npucoll.enable("keras")
    kind = Kind(name)
    x, y = make_data()
    x, y = x.reshape((-1, 6)), y.reshape((-1, 2))
    callbacks = [npu.NPUBroadcastGlobalVariablesCallback(0)]

    model = kind.model(1)
    model.compile(npu.npu_distributed_optimizer_wrapper(kind.optimizer("sgd")), kind.loss(), jit_compile=True)
    with pytest.raises(npucoll.UnsupportedError, match="jit_compile=False"):
        model.fit(x, y, verbose=0, callbacks=callbacks)
    # Without a wrapped optimizer XLA is nobody's business but the user's.
    model.compile(kind.optimizer("sgd"), kind.loss(), jit_compile=True)
    model.make_train_function()
    assert model.jit_compile
    if not kind.keras3:
        return

    # As on a machine with an accelerator.
    class Model(kind.keras.Model):
        def _resolve_auto_jit_compile(self):
            return True

    inner = kind.model(1)
    model = Model(inner.inputs, inner.outputs)
    model.compile(npu.npu_distributed_optimizer_wrapper(kind.optimizer("sgd")), kind.loss())
    assert model.jit_compile
    model.fit(x, y, verbose=0, callbacks=callbacks)
    assert not model.jit_compile
    model.__dict__.pop("_npucoll_jit_compile")
    model.jit_compile, model.train_function = True, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.make_train_function()
    assert not model.jit_compile and any("XLA" in str(one.message) for one in caught)


def warns_of_unreduced_gradients(name):
    """In a session's graph apply_gradients does not reduce; it says so where nobody has."""
    import npucoll

    npu = npucoll.enable("keras")
    kind = Kind(name)
    tf = kind.tf
    for optimizer in (kind.optimizer("sgd"), kind.optimizer("tf.train")):
        npu.npu_distributed_optimizer_wrapper(optimizer)
        variable = tf.compat.v1.get_variable(f"v_{type(optimizer).__name__}", [2], use_resource=True)
        gradients = tf.gradients(tf.reduce_sum(variable * variable), [variable])
        with pytest.warns(RuntimeWarning, match="drift apart"):
            optimizer.apply_gradients(zip(gradients, [variable]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            optimizer.apply_gradients(zip(npu.npu_allreduce(gradients), [variable]))


@pytest.mark.parametrize("kind", available())
def test_the_wrapper_accepts_and_refuses(ranks, kind):
    ranks(2, kind, accepts_and_refuses)


@pytest.mark.parametrize("kind", available())
def test_copies_are_plain(ranks, kind):
    ranks(2, kind, copies_as_plain)


@pytest.mark.parametrize("kind", available())
def test_all_ranks_start_from_the_root(ranks, kind):
    ranks(2, kind, starts_alike)


@pytest.mark.parametrize("kind", available()[:2])
def test_variables_and_lists_by_hand(ranks, kind):
    ranks(2, kind, broadcasts_by_hand)


@pytest.mark.parametrize("kind", only("tf.keras", "tf_keras"))
def test_xla_is_turned_off_or_refused(ranks, kind):
    ranks(2, kind, refuses_xla)


@pytest.mark.parametrize("kind", only("graph"))
def test_unreduced_gradients_in_a_graph_are_warned_about(ranks, kind):
    ranks(2, kind, warns_of_unreduced_gradients)
