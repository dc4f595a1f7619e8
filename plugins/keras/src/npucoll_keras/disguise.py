"""How an optimizer gets a method of ours and still saves, pickles and clones as the class that it was.

1. The object's type becomes a subclass made for this object alone, with our methods and the name of its base.
2. The subclass answers ``__class__`` with the base. Keras writes ``optimizer.__class__`` into files and configurations,
   so what is saved is the plain optimizer, which any process can load.
3. Pickling and copying look at the real type; during both the base is put back.
4. What must be remembered between calls stands in the subclass, never in the object, whose attributes are saved.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, Optional

__all__ = ["Hook", "hook_of", "put_on"]

#: Sets an object's type; plain assignment would end in the ``__setattr__`` of a Keras class, or in our own property.
_SET_TYPE: Any = object.__dict__["__class__"]


class Hook:
    """What we remember about one wrapped optimizer: its plain class, and which gradients were reduced."""

    def __init__(self, plain: type) -> None:
        self.plain = plain
        self._reduced: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._depth = 0

    @property
    def suppressed(self) -> bool:
        """Whether somebody above has reduced the gradients that are being passed down."""
        return self._depth > 0

    @contextlib.contextmanager
    def suppress(self) -> Iterator[None]:
        """Within this context the optimizer's own hook lets gradients pass."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def note(self, gradients: Iterable[Any]) -> None:
        """Remember that ``gradients`` were reduced."""
        for gradient in gradients:
            if gradient is not None:
                self._reduced[id(gradient)] = gradient

    def knows(self, gradients: Iterable[Any]) -> bool:
        """Return whether each of ``gradients`` that is not None was reduced."""
        return all(one is None or self._reduced.get(id(one)) is one for one in gradients)


def hook_of(optimizer: Any) -> Optional[Hook]:
    """Return the Hook of a wrapped optimizer, None for any other object."""
    return getattr(type(optimizer), "_npucoll_hook", None)


def put_on(optimizer: Any, make: Callable[[type, Hook], Dict[str, Callable[..., Any]]]) -> None:
    """Give ``optimizer`` the methods that ``make(plain class, hook)`` returns. Does nothing if it has ours already."""
    if hook_of(optimizer) is not None:
        return
    plain = type(optimizer)
    hook = Hook(plain)
    namespace: Dict[str, Any] = dict(make(plain, hook))
    namespace.update(
        __module__=plain.__module__,
        __qualname__=plain.__qualname__,
        __doc__=plain.__doc__,
        __class__=property(lambda self: plain),
        __reduce_ex__=_reduce_ex,
        __deepcopy__=_deepcopy,
        _npucoll_hook=hook,
    )
    metaclass: Any = type(plain)
    disguised = metaclass(plain.__name__, (plain,), namespace)
    _SET_TYPE.__set__(optimizer, disguised)


@contextlib.contextmanager
def _plain(optimizer: Any) -> Iterator[None]:
    disguised = type(optimizer)
    _SET_TYPE.__set__(optimizer, disguised._npucoll_hook.plain)
    try:
        yield
    finally:
        _SET_TYPE.__set__(optimizer, disguised)


def _reduce_ex(self: Any, protocol: int) -> Any:
    with _plain(self):
        return self.__reduce_ex__(protocol)


def _deepcopy(self: Any, memo: Any) -> Any:
    with _plain(self):
        return copy.deepcopy(self, memo)
