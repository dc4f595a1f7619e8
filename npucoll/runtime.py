"""The state of one process: its configuration, plugins, identity, and the communicator of all ranks.

1. ``init`` reads the configuration, learns from the launchers which rank this is, chooses an engine and opens it; that
   is where the ranks meet. Each ``init`` after a ``shutdown`` is a new generation, which the ranks count alike.
2. ``enable`` looks its modes up first, so that a wrong name fails before anybody waits, then initializes, then loads.
3. ``shutdown`` is local. An uncaught exception ends the communicator with its text, so that peers can tell it.
4. A forked child inherits this object but not the right to use it: every call there is refused.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Type

from npucoll import config
from npucoll.errors import ConfigError, NotInitialized, PluginError, UnsupportedError
from npucoll.hooks.manager import HookManager, nearest
from npucoll.hooks.providers import CollectiveEvent, EngineProvider, ModeProvider

if TYPE_CHECKING:
    from npucoll.bootstrap.identity import Identity
    from npucoll.communicators import Communicator
    from npucoll.engines.base import Call

__all__ = ["Runtime"]


class Runtime:
    """One process's npucoll. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._hooks: Optional[HookManager] = None
        self._disabled: Tuple[str, ...] = ()
        self._identity: Optional[Identity] = None
        self._comm: Optional[Communicator] = None
        self._settings: Tuple[str, float] = ("", 0.0)
        self._modules: Dict[str, Any] = {}
        self._generation = 0
        self._pid = os.getpid()
        self._previous_hook: Optional[Callable[..., Any]] = None
        self._at_exit = False

    @property
    def generation(self) -> int:
        """How many times this process has initialized."""
        return self._generation

    # -- initialization

    def init(self, engine: Optional[str] = None, timeout: Optional[float] = None) -> Communicator:
        """Meet the other ranks and return the communicator of all; see :func:`npucoll.init`."""
        self._refuse_forked()
        with self._lock:
            settings = config.load(engine=engine, timeout=timeout)
            if self._comm is not None:
                self._refuse_other(settings)
                return self._comm
            hooks = self._manager(settings)
            identity = self._identify(hooks)
            provider = self._choose(hooks, settings, identity)
            return self._open(hooks, settings, identity, provider)

    def communicator(self) -> Communicator:
        """Return the communicator of all ranks, or raise NotInitialized."""
        self._refuse_forked()
        if self._comm is None:
            raise NotInitialized("npucoll is not initialized; call npucoll.init() or npucoll.enable(mode) first")
        return self._comm

    def shutdown(self) -> None:
        """Leave the communicator of all ranks. Local, never blocks; does nothing without ``init``."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self._comm is not None:
                self._comm.close()

    def identity(self) -> Identity:
        """Return who this process is; before ``init`` as the environment says now."""
        self._refuse_forked()
        with self._lock:
            if self._identity is not None:
                return self._identity
            return self._identify(self._manager(config.load()))

    # -- modes

    def enable(self, *names: str) -> Any:
        """Initialize and load modes; see :func:`npucoll.enable`."""
        self._refuse_forked()
        with self._lock:
            settings = config.load()
            wanted = names or settings.modes
            hooks = self._manager(settings)
            origin = "" if names else f"{settings.origins.get('modes', '')}: "
            providers = [self._available(hooks, name, origin) for name in wanted]
            if self._comm is None:
                self.init()
            modules = tuple(self._load(provider) for provider in providers)
            return modules[0] if len(names) == 1 else modules

    def hooks(self) -> HookManager:
        """Return the plugins, as the configuration of now leaves them."""
        with self._lock:
            return self._manager(config.load())

    @staticmethod
    def _available(hooks: HookManager, name: str, origin: str) -> ModeProvider:
        if not isinstance(name, str):
            raise ConfigError(f"enable() takes the names of modes, got {name!r}")
        try:
            provider = hooks.find_mode(name)
        except PluginError as error:
            raise PluginError(f"{origin}{error}") from None
        missing = provider.unavailable()
        if missing:
            raise PluginError(f"{origin}mode {name!r}: {missing}")
        return provider

    def _load(self, provider: ModeProvider) -> Any:
        if provider.name not in self._modules:
            try:
                self._modules[provider.name] = provider.load()
            except PluginError:
                raise
            except ImportError as error:
                raise PluginError(f"mode {provider.name!r} cannot be loaded: {error}") from error
        return self._modules[provider.name]

    # -- the parts of init

    def _manager(self, settings: config.Config) -> HookManager:
        if self._hooks is None or self._disabled != settings.disable:
            self._hooks, self._disabled = HookManager(settings.disable), settings.disable
        return self._hooks

    @staticmethod
    def _identify(hooks: HookManager) -> Identity:
        from npucoll.bootstrap import detect

        return detect.identify(os.environ, [(one.name, one.detect) for one in hooks.launchers()])

    def _refuse_other(self, settings: config.Config) -> None:
        """Raise ConfigError where a second ``init`` asks for something else than the first."""
        engine, timeout = self._settings
        wanted = settings.engine or self._choose(self._manager(settings), settings, self.identity()).name
        if (wanted, settings.timeout) != (engine, timeout):
            raise ConfigError(
                f"npucoll is initialized with engine {engine!r} and a timeout of {timeout:g} s, not {wanted!r} and "
                f"{settings.timeout:g} s; call npucoll.shutdown() before init(), or npucoll.communicator() for the "
                "communicator that exists"
            )

    @staticmethod
    def _choose(hooks: HookManager, settings: config.Config, identity: Identity) -> EngineProvider:
        """Return the engine that was asked for, or the first that can serve these ranks."""
        engines, wanted = hooks.engines(), settings.engine
        if wanted is not None:
            if wanted not in engines:
                known = ", ".join(engines)
                origin = settings.origins["engine"]
                raise ConfigError(f"{origin}: no engine {wanted!r}; known engines: {known}{nearest(wanted, engines)}")
            candidates = [engines[wanted]]
        else:
            candidates = list(engines.values())
        reasons: List[str] = []
        for provider in candidates:
            reason = _unfit(provider, identity)
            if reason is None:
                return provider
            reasons.append(f"{provider.name}: {reason}")
        ranks = f"{identity.size} ranks" if identity.size > 1 else "one rank"
        hosts = f" on {identity.node_count} hosts" if identity.node_count > 1 else ""
        raise UnsupportedError(
            f"no engine here can serve {ranks}{hosts} ({'; '.join(reasons)}); {identity.source}: {identity.detail}"
        )

    def _open(
        self, hooks: HookManager, settings: config.Config, identity: Identity, provider: EngineProvider
    ) -> Communicator:
        from npucoll.communicators import Communicator
        from npucoll.engines.base import World

        self._generation += 1
        self._pid = os.getpid()
        engine = provider.open(World(identity, self._generation, settings.timeout, settings.connect_timeout))
        self._comm = Communicator(
            engine,
            local_rank=identity.local_rank,
            local_size=identity.local_size,
            observer=_observer(hooks),
            on_close=self._on_close,
        )
        self._identity = identity
        self._settings = (provider.name, settings.timeout)
        self._chain_excepthook()
        if not self._at_exit:
            atexit.register(self.shutdown)
            self._at_exit = True
        hooks.initialized(self._comm)
        return self._comm

    def _on_close(self, comm: Communicator) -> None:
        """Forget the communicator of all ranks, which is about to close, whoever closes it."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._comm = self._identity = None
            self._restore_excepthook()
            if self._hooks is not None:
                self._hooks.shutdown(comm)

    def _refuse_forked(self) -> None:
        if self._comm is not None and self._pid != os.getpid():
            raise NotInitialized(
                f"this process was forked from rank {self._comm.rank} (process {self._pid}) after npucoll.init(); "
                "a forked child takes no part in collectives: initialize after the fork, or spawn instead"
            )

    # -- uncaught exceptions

    def _chain_excepthook(self) -> None:
        if self._previous_hook is None:
            self._previous_hook = sys.excepthook
            sys.excepthook = self._on_exception

    def _restore_excepthook(self) -> None:
        # Somebody who hooked in after us still calls us; then we stay in the chain and only pass on.
        if sys.excepthook == self._on_exception and self._previous_hook is not None:
            sys.excepthook, self._previous_hook = self._previous_hook, None

    def _on_exception(self, kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        """End the communicator with the exception's text, then let the exception be reported as ever."""
        comm = self._comm
        previous = self._previous_hook or sys.__excepthook__
        if comm is not None and self._pid == os.getpid():
            text = "".join(traceback.format_exception_only(kind, error)).strip()
            try:
                comm.abort(text)
            except Exception as failure:
                print(f"npucoll: the other ranks could not be told: {failure}", file=sys.stderr)
        previous(kind, error, trace)


def _unfit(provider: EngineProvider, identity: Identity) -> Optional[str]:
    """Return why ``provider`` cannot serve the ranks of ``identity``, or None."""
    if provider.max_ranks is not None and identity.size > provider.max_ranks:
        return f"serves at most {provider.max_ranks} rank{'s' if provider.max_ranks > 1 else ''}"
    if identity.node_count > 1 and not provider.crosses_hosts:
        return "does not cross hosts"
    return provider.unavailable()


def _observer(hooks: HookManager) -> Optional[Callable[[str, Call, float, Optional[BaseException]], None]]:
    """Return what a Communicator calls after each collective, or None where no plugin observes."""
    observe = hooks.collective()
    if observe is None:
        return None
    tell = observe

    def on_call(communicator: str, call: Call, seconds: float, error: Optional[BaseException]) -> None:
        dtype = str(call.inputs[0].dtype) if call.inputs else None
        nbytes = sum(array.nbytes for array in call.inputs)
        tell(CollectiveEvent(communicator, call.kind, call.name, dtype, call.shape, nbytes, seconds, error))

    return on_call
