"""Runs a function on several ranks; raises failures and findings, or returns them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import networkx as nx

from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.engine.schedules import Choices
from simcoll.backends.simulated import simulate
from simcoll.errors import ConfigurationError
from simcoll.simulation.explore import explore_runs
from simcoll.testing.failures import error_of, warn_of_unchecked
from simcoll.testing.options import Options

T = TypeVar("T")


def run_ranks(
    world_size: int,
    fn: Callable[..., T],
    *,
    backend: str | None = None,
    seed: int = 0,
    schedule: str | None = None,
    explore: int | None = None,
    timeout: float = 60.0,
    topology: nx.DiGraph[Any] | None = None,
    sends: str | None = None,
    fail_on: str = "warning",
    values: str | None = None,
) -> list[T]:
    """Run ``fn`` on every rank of a world and return the ranks' results in rank order; raises failures and findings.

    ``fn`` may take one argument: the communicator on the backend ``simulated``, the rank on ``threaded`` and ``gloo``.
    ``backend`` is by default ``simulated`` where it takes one, and ``threaded`` where it takes none. ``seed``, and a
    ``schedule`` from the text of an earlier failure, choose the order in which ranks go on; ``explore`` tries that many
    orders. ``timeout`` is in real seconds. ``topology`` and ``sends`` are those of :func:`simcoll.simulate`. ``values``
    selects the calls whose values are checked: ``off``, ``sample``, ``all`` (default: SIMCOLL_VALUES, else ``off``).

    Raises the exception of the first rank that failed, with a note that names the rank; a skip passes through.
    Otherwise raises :class:`FindingsError` for a deadlock and for any finding (``fail_on="error"``: only one of
    that severity), TimeoutError where ranks do not end in time, and :class:`~simcoll.errors.ConfigurationError` for
    invalid arguments.
    """
    __tracebackhide__ = True
    options = Options(world_size, backend, seed, schedule, explore, timeout, topology, sends, fail_on, values)
    outcome = run_program(options, fn)
    warn_of_unchecked(outcome)
    if (error := error_of(outcome, fail_on=fail_on)) is not None:
        raise error
    return [cast(T, outcome.results.get(rank)) for rank in range(world_size)]


def try_ranks(
    world_size: int,
    fn: Callable[..., T],
    *,
    backend: str | None = None,
    seed: int = 0,
    schedule: str | None = None,
    explore: int | None = None,
    timeout: float = 60.0,
    topology: nx.DiGraph[Any] | None = None,
    sends: str | None = None,
    values: str | None = None,
) -> Outcome[T]:
    """Run as :func:`run_ranks` does and return the outcome: report, results, exceptions.

    Exceptions of ranks are in the outcome. Raises only TimeoutError and :class:`~simcoll.errors.ConfigurationError`.
    """
    options = Options(world_size, backend, seed, schedule, explore, timeout, topology, sends, values=values)
    return run_program(options, fn)


def run_program(options: Options, fn: Callable[..., T]) -> Outcome[T]:
    """Run ``fn`` with these options."""
    takes_one = _takes_an_argument(fn)
    if options.backend is None:
        options = replace(options, backend="simulated" if takes_one else "threaded")
    body: Callable[[Any], T] = fn if takes_one else lambda _: fn()
    return _RUNS[options.backend or ""](options, body)


def _takes_an_argument(fn: Callable[..., object]) -> bool:
    """True if a function needs an argument; raises ConfigurationError for one that ranks cannot run."""
    if not callable(fn):
        raise ConfigurationError(f"{fn!r:.80} is a {type(fn).__name__}: expected a function to run on every rank")
    name = getattr(fn, "__qualname__", repr(fn))
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return True
    needed = [one for one in parameters if one.default is one.empty and one.kind not in _COLLECTING]
    keywords = [one.name for one in needed if one.kind is inspect.Parameter.KEYWORD_ONLY]
    if len(needed) > 1 or keywords:
        names = ", ".join(one.name for one in needed)
        raise ConfigurationError(
            f"{name} needs {names}: a function that ranks run takes at most one argument (comm or rank);"
            " bind the others with functools.partial or a lambda"
        )
    return bool(needed)


_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _simulated(options: Options, body: Callable[[Any], T]) -> Outcome[T]:
    def run(choices: Choices | None = None) -> Outcome[T]:
        return simulate(
            body,
            options.world_size,
            options.topology,
            options.seed,
            schedule=options.schedule,
            sends=options.sends or "synchronous",
            choices=choices,
            timeout=options.timeout,
            values=options.values,
        )

    return _explore(options, run) or run()


def _threaded(options: Options, body: Callable[[Any], T]) -> Outcome[T]:
    from simcoll.backends.threaded.run import run_threaded

    size, seed, schedule, timeout = options.world_size, options.seed, options.schedule, options.timeout

    def run(choices: Choices | None = None) -> Outcome[T]:
        return run_threaded(
            size, body, seed=seed, schedule=schedule, choices=choices, timeout=timeout, values=options.values
        )

    return _explore(options, run) or run()


def _explore(options: Options, run: Callable[[Choices], Outcome[T]]) -> Outcome[T] | None:
    """The smallest failing run; None where none failed, or ``explore`` is not set."""
    return None if options.explore is None else explore_runs(run, options.explore, options.seed).failing


def _gloo(options: Options, body: Callable[[Any], T]) -> Outcome[T]:
    from simcoll.testing.gloo_ranks import run_forked

    return run_forked(options.world_size, body, timeout=options.timeout, values=options.values)


_RUNS: dict[str, Callable[[Options, Callable[[Any], Any]], Outcome[Any]]] = {
    "simulated": _simulated,
    "threaded": _threaded,
    "gloo": _gloo,
}
