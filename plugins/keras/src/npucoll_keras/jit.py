"""XLA cannot compile a collective, so a model whose optimizer is wrapped trains without it.

1. ``compile(jit_compile="auto")``, the default of Keras 3, chooses XLA on machines with an accelerator. After
   ``compile`` that choice looks like a ``True`` of the user's, so ``compile`` is made to remember what was asked for.
2. Before the training step is traced, in ``make_train_function``, "auto" is turned off and an explicit ``True`` is
   refused.
3. A model compiled before the first optimizer was wrapped left no note: where "auto" would have chosen XLA on this
   machine, it is turned off with a warning; elsewhere the ``True`` was the user's.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

from npucoll import UnsupportedError
from npucoll_keras import compat
from npucoll_keras.disguise import hook_of

__all__ = ["guard"]

_NOTE = "_npucoll_jit_compile"
_REFUSAL = (
    "jit_compile=True: XLA cannot compile the averaging of gradients that a wrapped optimizer does; "
    "compile the model with jit_compile=False"
)


def guard() -> None:
    """Watch over ``compile`` and ``make_train_function`` of every Keras that is loaded; again: does nothing."""
    for keras in compat.installed():
        model = keras.module.Model
        # TensorFlow 1.15 has neither.
        if hasattr(model, "make_train_function"):
            _wrap(model, "compile", _noting)
            _wrap(model, "make_train_function", _checking)


def _wrap(model: Any, name: str, make: Any) -> None:
    owner = next(one for one in model.__mro__ if name in one.__dict__)
    original = owner.__dict__[name]
    if not hasattr(original, "_npucoll_original"):
        wrapped: Any = functools.wraps(original)(make(original))
        wrapped._npucoll_original = original
        setattr(owner, name, wrapped)


def _noting(original: Any) -> Any:
    signature = inspect.signature(original)

    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 - named as the method it stands for
        result = original(self, *args, **kwargs)
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            return result
        bound.apply_defaults()
        object.__setattr__(self, _NOTE, bound.arguments.get("jit_compile"))
        return result

    return compile


def _checking(original: Any) -> Any:
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = getattr(self, "optimizer", None)
        jitted = optimizer is not None and getattr(self, "jit_compile", None)
        if jitted and hook_of(compat.innermost(optimizer)) is not None:
            _turn_off(self)
        return original(self, *args, **kwargs)

    return make_train_function


def _turn_off(model: Any) -> None:
    asked = model.__dict__.get(_NOTE, "unknown")
    if asked is True:
        raise UnsupportedError(_REFUSAL)
    if asked == "unknown":
        resolve = getattr(model, "_resolve_auto_jit_compile", None)
        if resolve is None or not resolve():
            raise UnsupportedError(_REFUSAL)
        warnings.warn("jit_compile is turned off: XLA cannot compile the averaging of gradients", stacklevel=4)
    model.jit_compile = False
