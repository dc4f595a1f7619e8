"""Finds the plugins, keeps what became of each, and calls the hooks: one typed method a hook.

1. Built-in plugins are modules of npucoll; outsiders are the entry points of the group ``npucoll``.
2. Every plugin loads in a try of its own. One that fails is kept as a :class:`PluginReport` with the reason, and the
   others go on.
3. Every call of a hook is made plugin by plugin: one that raises is reported the same way, and the others go on.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Type, TypeVar

import pluggy

from npucoll.errors import PluginError
from npucoll.hooks import spec
from npucoll.hooks.providers import CollectiveEvent, EngineProvider, LauncherProvider, ModeProvider

if TYPE_CHECKING:
    from npucoll.communicators import Communicator

__all__ = ["ABSENT", "BROKEN", "DISABLED", "FAILED", "LOADED", "HookManager", "PluginReport", "entry_points", "nearest"]

GROUP = "npucoll"
# The modes that extras of this distribution install.
OFFICIAL = ("keras", "tf1", "estimator")
BUILTINS = ("npucoll.engines.builtin", "npucoll.bootstrap.builtin")

LOADED = "loaded"
DISABLED = "switched off"
ABSENT = "needs a package"
BROKEN = "broken"
FAILED = "failed"

Provider = TypeVar("Provider", EngineProvider, ModeProvider, LauncherProvider)


class PluginReport:
    """What became of one plugin: its ``state``, and the ``text`` that explains it where it is not loaded."""

    def __init__(self, name: str, value: str, distribution: str = "", builtin: bool = False) -> None:
        self.name = name
        self.value = value
        self.distribution = distribution
        self.builtin = builtin
        self.state = LOADED
        self.text = ""
        self.hooks: List[str] = []

    def fail(self, state: str, text: str) -> None:
        """Keep the first thing that went wrong."""
        if self.state == LOADED:
            self.state, self.text = state, text

    def describe(self) -> str:
        """Return one sentence for messages: which plugin, from where, and what is wrong with it."""
        origin = f" of {self.distribution}" if self.distribution else ""
        return f"plugin {self.name!r}{origin} ({self.value}) {self.state}: {self.text}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name that is most like ``name``, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def entry_points() -> List[Any]:
    """Return the installed entry points of the group ``npucoll``, each once."""
    # Imported here: it costs 20 ms, and ``import npucoll`` alone needs no plugin.
    if sys.version_info >= (3, 8):
        from importlib import metadata
    else:
        import importlib_metadata as metadata
    found: Any = metadata.entry_points()
    group = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())
    # A checkout on sys.path and its installed copy announce the same plugin twice.
    return list({(point.name, point.value): point for point in group}.values())


class HookManager:
    """The plugins of one process.

    ``disabled`` are names of entry points that are not loaded at all. ``points`` are the entry points, None: those that
    are installed.
    """

    def __init__(self, disabled: Sequence[str] = (), points: Optional[Iterable[Any]] = None) -> None:
        self.reports: List[PluginReport] = []
        self._pluggy = pluggy.PluginManager(GROUP)
        self._pluggy.add_hookspecs(spec)
        self._owners: Dict[str, PluginReport] = {}
        self._deaf: List[Tuple[PluginReport, str]] = []
        for module in BUILTINS:
            report = PluginReport(module, module, builtin=True)
            self.reports.append(report)
            self._register(report, importlib.import_module(module))
        for point in entry_points() if points is None else points:
            report = PluginReport(point.name, point.value, _distribution(point))
            if point.name in disabled:
                report.fail(DISABLED, "the configuration's 'disable' names it")
                self.reports.append(report)
            else:
                self._load(report, point.load)

    def engines(self) -> Dict[str, EngineProvider]:
        """Return the engines by name, those to be preferred first."""
        found = self._collect("npucoll_engines", EngineProvider, "engine")
        return {one.name: one for one in sorted(found.values(), key=lambda one: one.order)}

    def modes(self) -> Dict[str, ModeProvider]:
        """Return the modes by name."""
        return self._collect("npucoll_modes", ModeProvider, "mode")

    def launchers(self) -> List[LauncherProvider]:
        """Return the launchers in the order in which they are asked."""
        found = self._collect("npucoll_launchers", LauncherProvider, "launcher")
        return sorted(found.values(), key=lambda one: one.order)

    def initialized(self, comm: Communicator) -> None:
        """Tell the plugins that ``comm``, the communicator of all ranks, is open."""
        for report, call in self._calls("npucoll_initialized"):
            self._tell("npucoll_initialized", report, call, {"comm": comm})

    def shutdown(self, comm: Communicator) -> None:
        """Tell the plugins that ``comm`` is about to close."""
        for report, call in self._calls("npucoll_shutdown"):
            self._tell("npucoll_shutdown", report, call, {"comm": comm})

    def collective(self) -> Optional[Callable[[CollectiveEvent], None]]:
        """Return the function that shows a collective to all who observe, or None where nobody does."""
        calls = self._calls("npucoll_collective")
        if not calls:
            return None

        def observe(event: CollectiveEvent) -> None:
            for report, call in calls:
                self._tell("npucoll_collective", report, call, {"event": event})

        return observe

    def troubles(self) -> List[PluginReport]:
        """Return the reports of the plugins that could not be used."""
        return [report for report in self.reports if report.state not in (LOADED, DISABLED)]

    def find_mode(self, name: str) -> ModeProvider:
        """Return the mode ``name``, or raise a PluginError that says what is wrong and what to do."""
        modes = self.modes()
        if name in modes:
            return modes[name]
        for report in self.reports:
            if report.name == name and report.state == DISABLED:
                raise PluginError(f"mode {name!r} is switched off: {report.text}")
            if report.name == name and report.state != LOADED:
                raise PluginError(f"mode {name!r} cannot be enabled: {report.describe()}")
        known = ", ".join(sorted(modes)) or "none"
        wanted = difflib.get_close_matches(name, [*modes, *OFFICIAL], n=1, cutoff=0.6)
        message = f"no mode {name!r} is installed; installed modes: {known}"
        if wanted and wanted[0] != name:
            message += f"; did you mean {wanted[0]!r}?"
        if not wanted or wanted[0] not in modes:
            extra = wanted[0] if wanted else OFFICIAL[0]
            message += f"; modes are plugins: pip install 'npucoll[{extra}]'"
        for report in self.troubles():
            message += f"; not loaded: {report.describe()}"
        raise PluginError(message)

    def _load(self, report: PluginReport, load: Callable[[], Any]) -> None:
        self.reports.append(report)
        try:
            plugin = load()
        except ModuleNotFoundError as error:
            own = report.value.partition(":")[0].partition(".")[0]
            missing = (error.name or "").partition(".")[0]
            if missing and missing not in (own, "npucoll"):
                report.fail(ABSENT, f"the module {missing!r} is not installed")
            else:
                report.fail(BROKEN, f"{_what(error)}; reinstall it")
        except (ImportError, AttributeError, SyntaxError) as error:
            report.fail(BROKEN, f"{_what(error)}; reinstall or update it")
        except (Exception, SystemExit) as error:
            # Anything may be raised while a stranger's module is imported, and it must not stop the others.
            report.fail(FAILED, _what(error))
        else:
            self._register(report, plugin)

    def _register(self, report: PluginReport, plugin: Any) -> None:
        name = f"{report.name} = {report.value}"
        try:
            self._pluggy.register(plugin, name=name)
            self._check(report, plugin)
        except (pluggy.PluginValidationError, ValueError) as error:
            report.fail(BROKEN, _what(error))
        if report.state == LOADED:
            self._owners[name] = report
        elif self._pluggy.get_name(plugin) == name:
            self._pluggy.unregister(plugin)

    def _check(self, report: PluginReport, plugin: Any) -> None:
        """Refuse a plugin with a hook that does not exist (a misspelt name), or with none at all."""
        known = [name for name in vars(spec) if name.startswith("npucoll_")]
        for caller in self._pluggy.get_hookcallers(plugin) or ():
            for impl in caller.get_hookimpls():
                if impl.plugin is not plugin:
                    continue
                if impl.hookwrapper or getattr(impl, "wrapper", False):
                    report.fail(BROKEN, f"its hook {caller.name!r} is a wrapper; npucoll calls plugins one by one")
                elif caller.has_spec():
                    report.hooks.append(caller.name)
                elif not impl.optionalhook:
                    report.fail(BROKEN, f"it implements the unknown hook {caller.name!r}{nearest(caller.name, known)}")
        report.hooks.sort()
        if not report.hooks:
            report.fail(BROKEN, "it implements no hook of npucoll; mark its functions with @npucoll.hookimpl")

    def _calls(self, hook: str) -> List[Tuple[PluginReport, Callable[[Dict[str, Any]], Any]]]:
        """Return, for every plugin that implements ``hook``, a function that calls this one plugin's."""
        impls = reversed(getattr(self._pluggy.hook, hook).get_hookimpls())
        return [(self._owners[impl.plugin_name], functools.partial(_call, impl)) for impl in impls]

    def _collect(self, hook: str, kind: Type[Provider], noun: str) -> Dict[str, Provider]:
        found: Dict[str, Provider] = {}
        owners: Dict[str, PluginReport] = {}
        for report, call in self._calls(hook):
            if report.state != LOADED:
                continue
            try:
                offered = list(call({}))
            except Exception as error:
                if report.builtin:
                    raise
                report.fail(FAILED, f"{hook} raised {_what(error)}")
                continue
            for one in offered:
                if not isinstance(one, kind):
                    report.fail(BROKEN, f"{hook} returned {one!r}, expected {kind.__name__}")
                elif one.name in found:
                    raise PluginError(
                        f"{noun} {one.name!r} is offered by plugin {report.name!r} and by {owners[one.name].name!r}; "
                        f"switch one of them off (NPUCOLL_DISABLE, or 'disable' in the configuration)"
                    )
                else:
                    found[one.name], owners[one.name] = one, report
        return found

    def _tell(self, hook: str, report: PluginReport, call: Callable[..., Any], arguments: Dict[str, Any]) -> None:
        """Call one plugin's hook that returns nothing. A plugin that raises is warned about, and not called again."""
        if (report, hook) in self._deaf:
            return
        try:
            call(arguments)
        except Exception as error:
            self._deaf.append((report, hook))
            text = f"{hook} of plugin {report.name!r} raised {_what(error)}; it is not called again"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


def _call(impl: Any, arguments: Dict[str, Any]) -> Any:
    # An implementation may take fewer arguments than the hook has.
    return impl.function(*[arguments[name] for name in impl.argnames])


def _what(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _distribution(point: Any) -> str:
    dist = getattr(point, "dist", None)
    return f"{dist.metadata['Name']} {dist.version}" if dist is not None else ""
