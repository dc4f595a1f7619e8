"""The collectives of npucoll_tensorflow, and ``npu_allreduce``."""

from __future__ import annotations

from typing import Any

import npucoll_tensorflow
from npucoll_keras.ranks import WORLD, check_group
from npucoll_tensorflow import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast", "npu_allreduce"]


def npu_allreduce(
    values: Any, reduction: str = "mean", fusion: int = 1, fusion_id: int = -1, group: str = WORLD
) -> Any:
    """Reduce a tensor, or a list or tuple of gradients, over all ranks.

    A list or tuple gives a list, with None and IndexedSlices in their places; its results become available after all
    its inputs. ``reduction``: "mean", "sum", "min", "max" or "prod". ``fusion`` and ``fusion_id`` are hints for another
    engine and change nothing here. ConfigError for another ``group`` than all ranks.
    """
    check_group(group)
    if isinstance(values, (list, tuple)):
        return npucoll_tensorflow.reduce_gradients(list(values), op=reduction)
    return npucoll_tensorflow.reduce_gradients([values], op=reduction)[0]
