"""Estimators on several ranks that share one model_dir."""

from __future__ import annotations

import glob
import json
import os
import time

import numpy as np
import pytest

STEPS, ROWS, FEATURES = 20, 8, 4


def start():
    import npucoll

    npu = npucoll.enable("estimator")
    import tensorflow.compat.v1 as tf

    tf.logging.set_verbosity(tf.logging.ERROR)
    return npucoll.communicator(), npu, tf


def data():
    random = np.random.RandomState(5)
    x = random.normal(size=(STEPS * ROWS, FEATURES)).astype(np.float32)
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def input_fn_of(tf, rank, size, repeat=1):
    """Return a function that gives this rank's rows of each batch."""

    def input_fn():
        x, y = data()
        dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).shard(size, rank)
        return dataset.batch(ROWS // size).repeat(repeat)

    return input_fn


class Recorder:
    """A model_fn that remembers what happened in its graphs."""

    def __init__(self, tf, npu, optimizer="momentum", wrap=True, extra=lambda **parts: {}):
        self.tf, self.npu, self.optimizer, self.wrap, self.extra = tf, npu, optimizer, wrap, extra
        self.spec = npu.NPUEstimatorSpec

    def __call__(self, features, labels, mode, params, config):
        tf = self.tf
        hidden = tf.tanh(_dense(tf, "hidden", features["x"], 3))
        prediction = _dense(tf, "out", hidden, 1)
        if mode == tf.estimator.ModeKeys.PREDICT:
            return self.spec(mode, predictions={"y": prediction})
        loss = tf.reduce_mean(tf.square(prediction - labels))
        if mode == tf.estimator.ModeKeys.EVAL:
            return self.spec(mode, loss=loss, eval_metric_ops={"error": tf.metrics.mean(loss)})
        optimizer = {
            "sgd": lambda: tf.train.GradientDescentOptimizer(0.02),
            "momentum": lambda: tf.train.MomentumOptimizer(0.01, 0.9),
            "adam": lambda: tf.train.AdamOptimizer(0.01),
        }[self.optimizer]()
        if self.wrap:
            optimizer = self.npu.npu_distributed_optimizer_wrapper(optimizer)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        return self.spec(mode, loss=loss, train_op=train_op, **self.extra(loss=loss))


def _dense(tf, name, x, units):
    with tf.variable_scope(name):
        w = tf.get_variable("w", [int(x.shape[1]), units])
        return tf.matmul(x, w) + tf.get_variable("b", [units], initializer=tf.zeros_initializer())


def keep_values(tf, first, last):
    """Return a hook that copies all variables before the first step and at the end."""

    def fetch(session):
        return {one.name: session.run(one) for one in tf.global_variables()}

    class Keep(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            first.update(fetch(session))

        def end(self, session):
            last.update(fetch(session))

    return Keep()


def train_like_one_process(directory, optimizer):
    comm, npu, tf = start()
    config = npu.NPURunConfig(
        model_dir=os.path.join(directory, "shared"),
        tf_random_seed=comm.rank,
        session_config=tf.ConfigProto(intra_op_parallelism_threads=1),
        save_checkpoints_secs=3600,
    )
    first, last = {}, {}
    estimator = npu.NPUEstimator(Recorder(tf, npu, optimizer), config=config)
    # The hook sees the variables after the broadcast.
    hooks = [keep_values(tf, first, last)]
    assert estimator.train(input_fn_of(tf, comm.rank, comm.size), hooks=hooks) is estimator
    comm.assert_in_sync(first)
    comm.assert_in_sync(last)
    assert last["global_step:0"] == STEPS
    # All ranks find the same checkpoint, which rank 0 wrote.
    assert estimator.latest_checkpoint().endswith(f"model.ckpt-{STEPS}")
    np.testing.assert_array_equal(estimator.get_variable_value("hidden/w"), last["hidden/w:0"])

    class Load(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            for variable in tf.global_variables():
                variable.load(first[variable.name], session)

    wanted = {}
    whole = Recorder(tf, npu, optimizer, wrap=False)
    tf.estimator.Estimator(whole, os.path.join(directory, f"reference{comm.rank}")).train(
        input_fn_of(tf, 0, 1), hooks=[Load(), keep_values(tf, {}, wanted)]
    )
    assert sorted(wanted) == sorted(last)
    for name in wanted:
        np.testing.assert_allclose(last[name], wanted[name], rtol=1e-5, atol=1e-6, err_msg=name)


def life_with_one_directory(directory):
    """train, evaluate, predict, train again, train_and_evaluate: each rank reads, rank 0 alone writes."""
    comm, npu, tf = start()
    written = []

    def extra(loss):
        class Chief(tf.train.SessionRunHook):
            def begin(self):
                written.append("chief hook")

        def host_call(value):
            written.append("host call")
            return tf.py_func(lambda one: written.append("step"), [value], [])

        return {"training_chief_hooks": [Chief()], "host_call": (host_call, [loss])}

    config = npu.NPURunConfig(
        iterations_per_loop=10, model_dir=directory, save_checkpoints_steps=5, save_summary_steps=2, precision_mode="x"
    )
    estimator = npu.NPUEstimator(Recorder(tf, npu, extra=extra), config=config)
    mine = input_fn_of(tf, comm.rank, comm.size, repeat=None)

    class Listener(tf.train.CheckpointSaverListener):
        def after_save(self, session, step):
            written.append(f"saved {int(step)}")

    estimator.train(mine, max_steps=10, saving_listeners=[Listener()])
    if comm.rank == 0:
        assert written.count("chief hook") == 1 and written.count("step") == 10
        assert "saved 10" in written
    else:
        assert written == []
    estimator.train(mine, max_steps=10)
    estimator.train(mine, steps=3)
    assert estimator.latest_checkpoint().endswith("ckpt-13")
    found = estimator.evaluate(input_fn_of(tf, 0, 1), steps=2)
    assert found["global_step"] == 13
    assert len(set(comm.allgather_object(float(found["error"])))) == 1
    predictions = [one["y"][0] for one in estimator.predict(input_fn_of(tf, 0, 1))]
    assert len(predictions) == STEPS * ROWS
    comm.assert_in_sync([np.array(predictions)])
    metrics, _ = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(mine, max_steps=20),
        tf.estimator.EvalSpec(input_fn_of(tf, 0, 1), steps=2, throttle_secs=0),
    )
    assert (metrics is None) if comm.rank else metrics["global_step"] == 20
    assert estimator.latest_checkpoint().endswith("ckpt-20")
    # On rank 0 alone, while the others have nothing to do with it.
    if comm.rank == 0:
        assert estimator.evaluate(input_fn_of(tf, 0, 1), steps=1)["global_step"] == 20
    comm.barrier()
    writers = {os.path.basename(path).split(".")[-1] for path in glob.glob(os.path.join(directory, "*", "events*"))}
    assert len(glob.glob(os.path.join(directory, "eval", "events*"))) == 1, writers
    assert len(glob.glob(os.path.join(directory, "events*"))) >= 1


def other_ways():
    """A temporary directory, save_on_all_ranks, horovod_mode, a plain Estimator, and config=None."""
    comm, npu, tf = start()
    mine = input_fn_of(tf, comm.rank, comm.size)
    estimator = npu.NPUEstimator(Recorder(tf, npu))
    estimator.train(mine, steps=2)
    assert len(set(comm.allgather_object(estimator.model_dir))) == 1
    assert estimator.evaluate(mine, steps=1)["global_step"] == 2

    config = npu.NPURunConfig(save_on_all_ranks=True, tf_random_seed=comm.rank)
    estimator = npu.NPUEstimator(Recorder(tf, npu), config=config)
    estimator.train(mine, steps=2)
    assert len(set(comm.allgather_object(estimator.model_dir))) == comm.size
    assert estimator.latest_checkpoint().endswith("ckpt-2")
    comm.assert_in_sync([estimator.get_variable_value("hidden/w")])

    first, last = {}, {}
    config = npu.NPURunConfig(horovod_mode=True, tf_random_seed=comm.rank, save_checkpoints_steps=0)
    estimator = npu.NPUEstimator(Recorder(tf, npu), config=config)
    estimator.train(mine, steps=1, hooks=[keep_values(tf, first, last)])
    assert estimator.latest_checkpoint() is None
    assert len({one.tobytes() for one in comm.allgather_object(first["hidden/w:0"])}) == comm.size

    config = tf.estimator.RunConfig(tf_random_seed=comm.rank + 1)
    estimator = tf.estimator.Estimator(Recorder(tf, npu), config=config)
    estimator.train(mine, steps=2, hooks=[npu.NPUBroadcastGlobalVariablesHook(0, comm.rank)])
    comm.assert_in_sync([estimator.get_variable_value("hidden/w")])
    assert tf.estimator.RunConfig not in type(npu.NPURunConfig()).__bases__ or isinstance(
        npu.NPURunConfig(), tf.estimator.RunConfig
    )


def uneven_steps():
    """A rank whose data end early is an error on all ranks, soon."""
    comm, npu, tf = start()
    import npucoll

    estimator = npu.NPUEstimator(Recorder(tf, npu), config=npu.NPURunConfig(save_checkpoints_steps=0))
    began = time.monotonic()
    with pytest.raises(npucoll.PeerLost, match="rank 1 ended its training after 3 steps, while rank 0 is in step 4"):
        estimator.train(input_fn_of(tf, comm.rank, comm.size), steps=3 if comm.rank else 5)
    assert time.monotonic() - began < 30
    # The communicator has ended; a new one works.
    npucoll.shutdown()
    npucoll.init()
    estimator.train(input_fn_of(tf, comm.rank, comm.size), steps=3)


def configurations():
    _, npu, tf = start()
    import tensorflow

    config = npu.NPURunConfig
    assert tensorflow.estimator.NPURunConfig is config
    assert config().save_checkpoints_steps == 100 and config().save_checkpoints_secs is None
    assert config(save_checkpoints_steps=0).save_checkpoints_steps == 0
    assert config(save_checkpoints_secs=3600).save_checkpoints_steps is None
    assert config(save_checkpoints_steps=0, save_checkpoints_secs=60).save_checkpoints_secs == 60
    assert config(save_checkpoints_steps=7, save_checkpoints_secs=0).save_checkpoints_steps == 7
    with pytest.raises(ValueError):
        config(save_checkpoints_steps=7, save_checkpoints_secs=60)
    assert config().save_summary_steps == 0
    # By position, as the device's documentation orders them.
    by_position = config(4, None, "d", 3, 2, 5, None, None, 6, 7, 8, None, False, "allow_mix_precision")
    assert (by_position.iterations_per_loop, by_position.model_dir, by_position.tf_random_seed) == (4, "d", 3)
    assert (by_position.save_summary_steps, by_position.save_checkpoints_steps) == (2, 5)
    assert (by_position.keep_checkpoint_max, by_position.keep_checkpoint_every_n_hours) == (6, 7)
    assert (by_position.log_step_count_steps, by_position.enable_data_pre_proc) == (8, False)
    assert by_position.precision_mode == "allow_mix_precision"
    other = config(auto_tune_mode="GA", modify_mixlist="a.json", hccl_timeout=600, session_creation_timeout_secs=60)
    assert (other.auto_tune_mode, other.modify_mixlist, other.hccl_timeout) == ("GA", "a.json", 600)
    assert other.replace(model_dir="x").hccl_timeout == 600
    with pytest.warns(UserWarning, match="did you mean 'save_checkpoints_steps'"):
        config(save_checkpoint_steps=7)
    strategy = tf.distribute.get_strategy()
    for name in ("distribute", "train_distribute", "eval_distribute", "experimental_distribute"):
        with pytest.raises(ValueError, match=f"{name}=.*npucoll replaces"):
            config(**{name: strategy})
    model = Recorder(tf, npu)
    with pytest.raises(ValueError, match="train_distribute=.*npucoll replaces"):
        npu.NPUEstimator(
            model, config=tf.estimator.RunConfig(train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
        )
    with pytest.raises(ValueError, match="model_fn"):
        npu.NPUEstimator()
    with pytest.raises(ValueError, match="RunConfig"):
        npu.NPUEstimator(model, config=3)
    with pytest.raises(ValueError, match="host_call"):
        npu.NPUEstimatorSpec("train", loss=tf.constant(1.0), train_op=tf.no_op(), host_call=3)
    cluster = {"cluster": {"chief": ["a:1"], "worker": ["a:2"]}, "task": {"type": "worker", "index": 0}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    try:
        assert config().is_chief and not config().cluster_spec
        assert json.loads(os.environ["TF_CONFIG"]) == cluster
        with pytest.raises(ValueError, match="use NPURunConfig"):
            npu.NPUEstimator(model, config=tf.estimator.RunConfig())
    finally:
        del os.environ["TF_CONFIG"]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("n", [2, 4], ids=["2 ranks", "4 ranks"])
def test_ranks_equal_one_process_on_the_whole_batch(ranks, tmp_path, n, optimizer):
    ranks(n, train_like_one_process, str(tmp_path), optimizer)


def test_one_directory_serves_all_ranks(ranks, tmp_path):
    ranks(2, life_with_one_directory, str(tmp_path))


@pytest.mark.parametrize(
    "check", [other_ways, configurations, uneven_steps], ids=["other_ways", "configurations", "uneven_steps"]
)
def test_configurations(ranks, check):
    ranks(2, check)
