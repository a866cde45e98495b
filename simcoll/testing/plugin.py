"""The pytest plugin: ``@pytest.mark.simcoll`` runs a test on every rank, and fails it on findings.

Fixtures are set up once, in the main thread, and shared by all ranks. Loading this imports neither numpy nor torch: it
is used while tests are collected. The marker's options are world size, backend, and the variants of a test.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from simcoll.errors import ConfigurationError
from simcoll.testing.options import NAMES, Options, check_names

MARKER = "simcoll"

SIGNATURE = (
    "simcoll(world_size, backend=None, *, seed=0, seeds=None, explore=None, schedule=None, topology=None, sends=None,"
    " timeout=60, fail_on='warning', values=None): run the test on every rank of a world, and fail it on any finding."
    " Lists of world_size, backend and seeds parametrise it."
)

_AXES = {"world_size": "world_size", "backend": "backend", "seeds": "seed"}
"""Options of the marker that may be lists, and the options of one run that they give values to."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A parametrisation of a test: ``option`` takes each of ``values``."""

    option: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The name of the test's parameter."""
        return f"simcoll_{self.option}"

    def ids(self) -> list[str]:
        """The ids of the variants in the test's name."""
        return [str(value) if self.option == "backend" else f"{self.option}={value}" for value in self.values]


def is_marked(node: pytest.Item) -> bool:
    """True if a test runs on ranks."""
    return node.get_closest_marker(MARKER) is not None


def marker_options(node: pytest.Item) -> dict[str, Any]:
    """The options of a test's markers; those on the function override those on its class and module.

    Raises :class:`~simcoll.errors.ConfigurationError` for unknown options.
    """
    declared: dict[str, Any] = {}
    for marker in reversed(list(node.iter_markers(MARKER))):
        if len(marker.args) > 2:
            raise ConfigurationError(
                f"{len(marker.args)} values without names: expected world_size and backend at most"
            )
        given = dict(zip(("world_size", "backend"), marker.args, strict=False))
        if twice := given.keys() & marker.kwargs.keys():
            raise ConfigurationError(f"{min(twice)} is given twice")
        check_names(marker.kwargs, {*NAMES, "seeds"})
        declared |= {**given, **marker.kwargs}
    return declared


def axes(declared: Mapping[str, Any]) -> Iterator[Axis]:
    """The parametrisations that the options of a marker ask for."""
    for name, option in _AXES.items():
        value = declared.get(name)
        if name == "seeds" and isinstance(value, int):
            raise ConfigurationError(
                f"seeds={value}: expected a list of seeds, such as range({value}); for one: seed={value}"
            )
        if isinstance(value, (list, tuple, range)):
            if not value:
                raise ConfigurationError(f"{name}={value!r}: expected at least one value")
            yield Axis(option, tuple(value))
        elif name == "seeds" and value is not None:
            raise ConfigurationError(f"seeds={value!r:.40}: expected a list of seeds")


def options_of(declared: Mapping[str, Any], chosen: Mapping[str, Any], *, seed: int, takes_comm: bool) -> Options:
    """The options of one variant: ``chosen`` on each axis, ``seed`` where the markers have none."""
    given = {name: value for name, value in declared.items() if name != "seeds" and value is not None}
    if "seeds" in declared and "seed" in declared:
        raise ConfigurationError("seed and seeds are both given")
    given = {"seed": seed, **given, **chosen}
    if "world_size" not in given:
        raise ConfigurationError("expected on how many ranks the test runs, such as world_size=4")
    given.setdefault("backend", "simulated" if takes_comm or _is_simulated(given) else "threaded")
    return Options(**given)


def _is_simulated(given: Mapping[str, Any]) -> bool:
    return any(given.get(name) is not None for name in ("topology", "sends"))


def variants(declared: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of values on the axes."""
    found = list(axes(declared))
    for values in itertools.product(*(axis.values for axis in found)):
        yield {axis.option: value for axis, value in zip(found, values, strict=True)}


def check_function(function: object) -> None:
    """Raise :class:`~simcoll.errors.ConfigurationError` for a test that ranks cannot run."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            "it is async: ranks have a thread or a process each and may block; make it a plain function"
        )
    if inspect.isgeneratorfunction(function):
        raise ConfigurationError("it yields: make it a plain function")
    if getattr(function, "is_hypothesis_test", False):
        raise ConfigurationError(
            "@given would draw other examples on each rank: call simcoll.testing.run_ranks inside the test instead"
        )


if TYPE_CHECKING:
    from simcoll.backends.engine.outcome import Outcome

SECTION = "simcoll findings"


class _PerRank:
    """A placeholder for a value that differs between ranks, until the test runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<each rank's {self.name}>"


_PLAN = pytest.StashKey[Options]()
_OUTCOME = pytest.StashKey["tuple[Outcome[Any], Options]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--simcoll-seed``."""
    group = parser.getgroup("simcoll", "tests that run on several ranks")
    text = "the seed of the order in which ranks go on, for tests that state none (default: 0, first come first served)"
    group.addoption("--simcoll-seed", type=int, default=0, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", SIGNATURE)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check a marked test, and parametrise it."""
    if not is_marked(metafunc.definition):
        return
    try:
        check_function(metafunc.function)
        declared = marker_options(metafunc.definition)
        found = list(axes(declared))
        for chosen in variants(declared):
            # A test may be parametrised with world_size by itself.
            own = {"world_size": 1} if "world_size" in metafunc.fixturenames else {}
            options_of(own | declared, chosen, seed=0, takes_comm="comm" in metafunc.fixturenames)
    except ConfigurationError as error:
        raise pytest.Collector.CollectError(_refusal(metafunc.definition, error)) from None
    for axis in found:
        metafunc.fixturenames.append(axis.name)
        metafunc.parametrize(axis.name, axis.values, ids=axis.ids())


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse tests that pytest does not parametrise and that are therefore not checked yet, as of unittest.TestCase."""
    try:
        _options(item)
    except ConfigurationError as error:
        pytest.fail(_refusal(item, error), pytrace=False)


def _refusal(item: pytest.Item, error: ConfigurationError) -> str:
    return f"{item.nodeid}: pytest.mark.simcoll: {error}"


def _options(item: pytest.Item) -> Options | None:
    """The options of a test's markers; None for a test without one."""
    if not is_marked(item):
        return None
    if _PLAN not in item.stash:
        item.stash[_PLAN] = _plan(item)
    return item.stash[_PLAN]


def _plan(item: pytest.Item) -> Options:
    if not isinstance(item, pytest.Function):
        raise ConfigurationError(f"a {type(item).__name__} cannot run on ranks: mark a test function")
    check_function(item.function)
    declared, params = marker_options(item), item.callspec.params if hasattr(item, "callspec") else {}
    chosen: dict[str, Any] = {}
    for axis in axes(declared):
        if axis.name not in params:
            raise ConfigurationError(f"several values of {axis.option}: pytest cannot parametrise this kind of test")
        chosen[axis.option] = params[axis.name]
    if "world_size" not in declared and "world_size" in params:
        chosen["world_size"] = params["world_size"]
    seed = item.config.getoption("--simcoll-seed")
    return options_of(declared, chosen, seed=seed, takes_comm="comm" in item.fixturenames)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Any:
    """The communicator of this rank, in a test marked ``simcoll`` that runs on the backend ``simulated``."""
    return _per_rank(request, "comm")


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> Any:
    """The number of this rank, in a test marked ``simcoll``."""
    return _per_rank(request, "rank")


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks on which a test marked ``simcoll`` runs."""
    return _marked_options(request, "world_size").world_size


@pytest.fixture
def simcoll_ranks(request: pytest.FixtureRequest) -> Callable[..., list[Any]]:
    """:func:`simcoll.testing.run_ranks`, with the seed of ``--simcoll-seed`` unless it is given another one."""

    def run_on(world_size: int, fn: Callable[..., Any], **options: Any) -> list[Any]:
        __tracebackhide__ = True
        from simcoll.testing import run_ranks

        check_names(options, set(NAMES) - {"world_size"})
        return run_ranks(world_size, fn, **{"seed": request.config.getoption("--simcoll-seed"), **options})

    return run_on


def _per_rank(request: pytest.FixtureRequest, name: str) -> _PerRank:
    options = _marked_options(request, name)
    if name not in inspect.signature(request.node.function).parameters:
        _refuse(f"a fixture asks for {name!r}: fixtures are set up once for all ranks; let the test itself ask for it")
    if name == "comm" and options.backend != "simulated":
        _refuse(f"'comm' is for the backend 'simulated', and this is {options.backend!r}: call torch.distributed there")
    return _PerRank(name)


def _marked_options(request: pytest.FixtureRequest, name: str) -> Options:
    options = _options(request.node)
    return (
        _refuse(f"the fixture {name!r} is for tests marked with pytest.mark.{MARKER}") if options is None else options
    )


def _refuse(text: str) -> NoReturn:
    pytest.fail(f"simcoll: {text}", pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Replace a marked test's function by one that runs it on every rank."""
    options = _options(item)
    if options is None or not isinstance(item, pytest.Function):
        return (yield)
    program = item.obj
    item.obj = _on_every_rank(item, program, options)
    try:
        return (yield)
    finally:
        item.obj = program


def _on_every_rank(item: pytest.Item, program: Callable[..., object], options: Options) -> Callable[..., None]:
    def run_test(**fixtures: Any) -> None:
        __tracebackhide__ = True
        from simcoll.testing.failures import error_of, warn_of_unchecked
        from simcoll.testing.run import run_program

        def on_a_rank(own: Any) -> None:
            place = {"comm": own, "rank": getattr(own, "rank", own)}
            given = {name: place[one.name] if isinstance(one, _PerRank) else one for name, one in fixtures.items()}
            program(**given)

        outcome = run_program(options, on_a_rank)
        item.stash[_OUTCOME] = outcome, options
        warn_of_unchecked(outcome)
        error = error_of(outcome, fail_on=options.fail_on, brief=True)
        if error is not None:
            raise error

    return run_test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the findings to the report of a test that ran on ranks."""
    report = yield
    if call.when == "call" and (ran := item.stash.get(_OUTCOME, None)) is not None and not report.skipped:
        outcome, options = ran
        if outcome.findings:
            report.sections.append((SECTION, "\n".join(_section(item.config, outcome, options))))
    return report


def _section(config: pytest.Config, outcome: Outcome[Any], options: Options) -> Iterator[str]:
    from simcoll.testing.failures import report_text

    writer = config.get_terminal_writer()
    yield report_text(outcome.report, width=max(writer.fullwidth, 80), colour=writer.hasmarkup)
    where = f"{options.world_size} ranks, backend {options.backend}"
    if options.explore is not None:
        yield f"{where}: the smallest of the failing schedules of explore={options.explore}"
        yield f"replay it with schedule={outcome.schedule!r} in place of explore={options.explore}"
    elif options.schedule is None and outcome.schedule:
        yield f"{where}, seed {options.seed}; the same with schedule={outcome.schedule!r}"
    else:
        yield f"{where}, seed {options.seed}"
