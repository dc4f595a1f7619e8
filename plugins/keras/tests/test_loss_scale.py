"""A step that overflows on one rank is left out on all, whichever way round the optimizers are wrapped."""

from __future__ import annotations

import numpy as np
import pytest
from kinds import FEATURES, Kind, available

STEPS, OVERFLOW = 6, 3


def scaler_of(kind):
    keras = kind.keras
    if kind.keras3:
        return keras.optimizers.LossScaleOptimizer
    if kind.tf1:
        experimental = keras.mixed_precision.experimental
        return lambda inner: experimental.LossScaleOptimizer(inner, "dynamic")
    return keras.mixed_precision.LossScaleOptimizer


def scale_now(kind, optimizer):
    if kind.keras3:
        return float(optimizer.dynamic_scale.numpy())
    if kind.tf1:
        value = optimizer.loss_scale()
        return float(kind.keras.backend.get_value(value) if kind.name == "graph" else value)
    return float(optimizer.loss_scale)


def train(kind, make, rank, npu, policy=None):
    """Train some steps, one of which overflows on rank 1 only; return the weights around it, and the scales."""
    if policy:
        kind.keras.mixed_precision.set_global_policy(policy)
    try:
        model = kind.model(100 + rank)
    finally:
        if policy:
            kind.keras.mixed_precision.set_global_policy("float32")
    model.compile(make(kind.optimizer("momentum")), kind.loss())
    random = np.random.RandomState(rank)
    seen = []
    for step in range(STEPS):
        x = random.normal(size=(4, FEATURES)).astype(np.float32)
        if step == OVERFLOW and rank == 1:
            x[0, 0] = np.inf
        callbacks = [npu.NPUBroadcastGlobalVariablesCallback(0)] if step == 0 else []
        model.fit(x, np.ones((4, 2), np.float32), batch_size=4, verbose=0, callbacks=callbacks)
        seen.append((kind.values(model), model.get_weights(), scale_now(kind, model.optimizer)))
    return seen


def all_skip(name, wants_policy):
    import npucoll

    npu = npucoll.enable("keras")
    comm = npucoll.communicator()
    kind = Kind(name)
    scaler = scaler_of(kind)
    wrap = npu.npu_distributed_optimizer_wrapper

    def outside(optimizer):
        scaled = scaler(optimizer)
        assert wrap(scaled) is scaled
        return scaled

    cases = [(outside, None), (lambda optimizer: scaler(wrap(optimizer)), None)]
    if wants_policy:
        cases.append((wrap, "mixed_float16"))
    for make, policy in cases:
        seen = train(kind, make, comm.rank, npu, policy)
        for values, weights, _ in seen:
            comm.assert_in_sync(values)
            assert all(np.isfinite(weight).all() for weight in weights)
        before, after = seen[OVERFLOW - 1], seen[OVERFLOW]
        assert all(np.array_equal(one, other) for one, other in zip(before[1], after[1])), "the step was not left out"
        assert after[2] == before[2] / 2
        assert not np.array_equal(after[1][0], seen[OVERFLOW + 1][1][0]), "training does not go on"


@pytest.mark.parametrize("kind", available())
def test_all_ranks_leave_a_step_out_together(ranks, kind):
    ranks(2, kind, all_skip, kind not in ("graph", "eager"))
