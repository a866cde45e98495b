"""``simcoll simulate``: play a scenario, or a Python program, on ranks in this process; verify, price and report."""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.backends.engine.schedules import SENDS
from simcoll.backends.simulated import simulate
from simcoll.cli.arguments import (
    add_executor_argument,
    add_output_arguments,
    add_report_files,
    add_topology_arguments,
    request_of,
)
from simcoll.cli.files import sarif_text, write_file, write_recorded_timeline
from simcoll.cli.output import Output
from simcoll.core.executors import opened
from simcoll.core.io import stated_path
from simcoll.errors import BAD_INPUT, CANNOT_START, ExecutorError, SimcollError, UsageError
from simcoll.launch.preconditions import PreconditionError, check_script, check_torch
from simcoll.simulation.backends import Run, run_gloo, run_of, run_simulated, run_threaded
from simcoll.simulation.explore import explore
from simcoll.simulation.library import scenario_path
from simcoll.simulation.play_numpy import play, with_slow_links
from simcoll.simulation.rank_steps import check_steps
from simcoll.simulation.reader import read_scenario
from simcoll.simulation.report import (
    Simulation,
    SimulationPicture,
    differences,
    exit_code_of,
    simulation_document,
    unmet,
)
from simcoll.simulation.scenario import Scenario
from simcoll.simulation.toml_table import nearest
from simcoll.testing.options import BACKENDS
from simcoll.topology.request import TopologyRequest
from simcoll.verifier.findings.rules import RULES

if TYPE_CHECKING:
    from simcoll.reports.page_shell import PricedPage
    from simcoll.topology.graph import Topology

_STALL = 5.0
_LIKE_A_CODE = re.compile("SC[0-9]+", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``simulate`` to its parser."""
    parser.description = f"{(parser.description or '').rstrip('.')}; verify, price and report."
    parser.add_argument(
        "target", metavar="SCENARIO|CODE|FILE.py[:FUNCTION]", help="a TOML file, a finding's code, or FUNCTION(comm)"
    )
    parser.add_argument("--ranks", metavar="N", type=int, help="how many ranks run a Python program")
    parser.add_argument("--backend", choices=BACKENDS, default="simulated", help="default: simulated")
    parser.add_argument("--seed", metavar="N", type=int, help="seed of the schedule (default: the scenario's, or 0)")
    parser.add_argument("--schedule", metavar="TEXT", help="replay this schedule, as an exploration gave it")
    parser.add_argument("--explore", metavar="N", type=int, help="try N schedules, report the smallest that fails")
    add_executor_argument(parser)
    parser.add_argument("--sends", choices=SENDS, help="when a send ends (default: the scenario's, or synchronous)")
    parser.add_argument("--check", action="store_true", help="exit 0 exactly when all is as the scenario expects")
    parser.add_argument(
        "--stall", metavar="SECONDS", type=float, default=_STALL, help="gloo: end ranks that stand still (default: 5)"
    )
    files = parser.add_argument_group("files")
    files.add_argument(
        "--out", metavar="DIR", type=stated_path, help="write report.json and report.html there; gloo: records"
    )
    add_report_files(files)
    add_output_arguments(parser)
    add_topology_arguments(parser)


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll simulate``; the exit code of the contract."""
    request = request_of(SimulateRequest, options)
    return play_and_judge(request, Output(json=options.json, plain=options.plain))


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """The options of a simulation: ``target`` (a scenario or a program), how and on which ranks it runs, output files.

    None: as the scenario has it, or not asked for. ``check`` compares with the scenario's expectation.
    """

    target: str
    ranks: int | None
    backend: str
    seed: int | None
    schedule: str | None
    explore: int | None
    executor: str | None
    sends: str | None
    check: bool
    stall: float
    out: Path | None
    html: Path | None
    sarif: Path | None
    trace_events: Path | None
    topology: TopologyRequest

    def refuse_contradictions(self) -> None:
        """Raise UsageError for options that do not go together, and for numbers that cannot be."""
        if self.explore is not None and self.explore < 1:
            raise UsageError(f"--explore {self.explore}: expected how many schedules, at least 1")
        if not (math.isfinite(self.stall) and self.stall > 0):
            raise UsageError(f"--stall {self.stall}: expected seconds, more than 0")
        if self.explore is not None and self.schedule is not None:
            raise UsageError("--explore and --schedule: give one of them, a schedule is what exploring finds")
        if self.executor is not None and self.explore is None:
            raise UsageError("--executor spreads an exploration; give --explore N too, or leave it out")
        simulated = {"explore": self.explore, "schedule": self.schedule, "sends": self.sends}
        given = [f"--{name}" for name, value in simulated.items() if value is not None]
        if self.backend != "simulated" and given:
            raise UsageError(f"{', '.join(given)}: only simulated ranks have it; leave --backend {self.backend} out")

    def graph(self, scenario: Scenario | None) -> Topology | None:
        """The topology asked for, otherwise the scenario's, with the links that the scenario makes slow."""
        asked = self.topology if self.topology.is_given else None if scenario is None else scenario.topology
        found = None if asked is None else asked.build()
        return found if scenario is None else with_slow_links(scenario, found)


def play_and_judge(request: SimulateRequest, output: Output) -> int:
    """Play a scenario or a program, verify and price it, and show everything; the exit code of the contract."""
    try:
        request.refuse_contradictions()
        program = _program_of(request.target)
        simulation = _of_scenario(request, output) if program is None else _of_program(request, *program, output)
        _write_files(request, simulation, output)
    except (PreconditionError, ExecutorError) as error:
        return output.refuse(error.code, str(error))
    except (SimcollError, ValueError) as error:
        return output.refuse(BAD_INPUT, str(error))
    output.render(SimulationPicture(simulation), lambda: simulation_document(simulation))
    return exit_code_of(simulation, check=request.check)


def _of_scenario(request: SimulateRequest, output: Output) -> Simulation:
    """Play a scenario on simulated ranks, and on the others that are asked for; compare with its expectation."""
    if request.ranks is not None:
        raise UsageError(f"--ranks {request.ranks}: the scenario states its ranks; leave --ranks out")
    scenario = read_scenario(_scenario_path(request.target))
    check_steps(scenario)
    if request.check and scenario.expect is None:
        raise UsageError(f"{scenario.path}: --check needs an [expect] table, which says what is to be found")
    scenario = replace(
        scenario,
        seed=scenario.seed if request.seed is None else request.seed,
        sends=request.sends or scenario.sends,
    )
    topology = request.graph(scenario)
    if request.explore is not None:
        simulated = _explored(
            request, output, functools.partial(play, scenario), scenario.ranks, topology, scenario.seed, scenario.sends
        )
    else:
        simulated = run_simulated(
            scenario, topology, seed=scenario.seed, sends=scenario.sends, schedule=request.schedule
        )
    shown, different = simulated, None
    if request.backend != "simulated":
        shown = _run_real(request, scenario)
        different = differences(simulated, shown)
    problems = None if scenario.expect is None else unmet(scenario, shown.report, simulated.seconds)
    return Simulation(scenario.title, shown, simulated, problems, different, topology)


def _run_real(request: SimulateRequest, scenario: Scenario) -> Run:
    """The same scenario with torch: on threads, or on processes."""
    check_torch()
    if request.backend == "threaded":
        return run_threaded(scenario, seed=scenario.seed)
    if request.out is not None:
        return run_gloo(scenario, request.out, request.stall)
    with tempfile.TemporaryDirectory() as folder:
        return run_gloo(scenario, Path(folder), request.stall)


def _of_program(request: SimulateRequest, path: Path, function: str, output: Output) -> Simulation:
    """Run a Python program on simulated ranks."""
    if request.backend != "simulated" or request.check:
        other = "--check" if request.check else f"--backend {request.backend}"
        raise UsageError(f"{other}: goes with a scenario; a Python program runs on simulated ranks")
    if request.ranks is None:
        raise UsageError(f"{request.target}: how many ranks run it? give --ranks N")
    found = path if request.executor is None else path.absolute()  # a worker has a working directory of its own
    program, topology = _LoadedProgram(found, function), request.graph(None)
    program.load()
    seed, sends = request.seed or 0, request.sends or SENDS[0]
    if request.explore is not None:
        run = _explored(request, output, program, request.ranks, topology, seed, sends)
    else:
        outcome = simulate(program, request.ranks, topology, seed, schedule=request.schedule, sends=sends)
        run = run_of(outcome, topology)
    return Simulation("", run, run, None, None, topology)


def _explored(
    request: SimulateRequest,
    output: Output,
    program: Callable[[Any], object],
    ranks: int,
    topology: Topology | None,
    seed: int,
    sends: str,
) -> Run:
    """Try schedules; the run that failed with the smallest one, or else the one in the default order."""
    with contextlib.ExitStack() as stack:
        spread = None if request.executor is None else stack.enter_context(opened(request.executor))
        found = explore(program, ranks, request.explore or 1, topology, seed, sends=sends, spread=spread)
    if found.failing is None:
        output.warn(f"{found.tried:,} schedules tried, none fails")
        return run_of(simulate(program, ranks, topology, sends=sends), topology)
    output.warn(f"{found.tried:,} schedules tried, {found.failed:,} fail; this is the smallest; to replay it:")
    command = replay_command(request, found.failing.schedule)
    print(f"  {command}", file=sys.stderr, flush=True)  # noqa: T201  # one line of any length, to be copied
    return replace(run_of(found.failing, topology), replay=command, tried=found.tried, failed=found.failed)


def replay_command(request: SimulateRequest, schedule: str) -> str:
    """The command line that replays a schedule: the options that decide the run, and the schedule."""
    words = ["simcoll", "simulate", request.target]
    deciding = {"ranks": request.ranks, "sends": request.sends, "check": request.check, **asdict(request.topology)}
    for name, value in deciding.items():
        if value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join([*words, "--schedule", schedule])


def _write_files(request: SimulateRequest, simulation: Simulation, output: Output) -> None:
    """Write the files that were asked for; raises UsageError."""
    report, traces = simulation.shown.report, simulation.shown.traces
    if request.html is not None:
        from simcoll.reports.html_report import html_report
        from simcoll.verifier.views.requested import charted

        write_file(request.html, html_report(report, charted(report, traces), **_priced(simulation)))
    if request.sarif is not None:
        code = exit_code_of(simulation, check=request.check)
        write_file(request.sarif, sarif_text(report, code, Path.cwd()))
    if request.trace_events is not None:
        # The run that is shown, in its own time: virtual where it is simulated.
        run = simulation.shown if traces else simulation.simulated
        write_recorded_timeline(request.trace_events, run.traces, run.report.findings)
    if request.out is not None:
        _make_folder(request.out)
        output.save(report, request.out, traces, **_priced(simulation))


def _priced(simulation: Simulation) -> PricedPage:
    """Returns the page's parts beside the report for a run on a topology: the picture, and the calls' costs."""
    from simcoll.pricing.views.simulated_calls import priced_lines, priced_sheet
    from simcoll.pricing.views.topology_figure import topology_figure

    run, topology = simulation.simulated, simulation.topology
    figures = [] if topology is None else [topology_figure(topology, run.traces)]
    if run.seconds is None or not (lines := priced_lines(run.traces)):
        return {"figures": figures, "tables": []}
    return {"figures": figures, "tables": [priced_sheet(lines, run.seconds)]}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}; choose another one") from None


def _scenario_path(target: str) -> Path:
    """A file, or the library's scenario of a code, also where a folder (a report's, say) has its name."""
    path = Path(target)
    if os.path.exists(path) and not os.path.isdir(path):
        return path
    rule = RULES.get(target.upper())
    if rule is not None and rule.unplayed:
        raise UsageError(
            f"{rule.code} has no scenario: {rule.unplayed}; simcoll rules {rule.code} shows lines of a program,"
            " which simcoll run --values all finds"
        )
    if rule is None and _LIKE_A_CODE.fullmatch(target):
        raise UsageError(f"{target}: there is no finding of this code, and no such file; simcoll rules lists the codes")
    return scenario_path(target) or path


def _program_of(target: str) -> tuple[Path, str] | None:
    """File and function of ``FILE.py[:FUNCTION]``; None for a name that is no Python program."""
    file, colon, function = target.rpartition(":")
    if colon and file.endswith(".py"):
        return Path(file), function
    return (Path(target), "main") if target.endswith(".py") else None


@dataclass(frozen=True, slots=True)
class _LoadedProgram:
    """A function of a file, loaded once in each process: as a value it can be sent to a worker that sees the file."""

    path: Path
    function: str

    def load(self) -> Callable[[Any], object]:
        """The function; raises PreconditionError where it cannot be had."""
        return _loaded(self.path, self.function)

    def __call__(self, comm: Any) -> object:
        return self.load()(comm)


@functools.cache
def _loaded(path: Path, function: str) -> Callable[[Any], object]:
    """The function that a Python program defines; raises PreconditionError where it cannot be had."""
    import runpy

    check_script(path, compiles=True)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        defined = runpy.run_path(str(path), run_name="simcoll_program")
    except (Exception, SystemExit) as error:
        raise PreconditionError(CANNOT_START, f"{path}: {type(error).__name__}: {error}") from error
    found = defined.get(function)
    if not callable(found):
        functions = [each for each, value in defined.items() if callable(value)]
        raise PreconditionError(BAD_INPUT, f"{path} defines no function {function}(comm){nearest(function, functions)}")
    return found  # type: ignore[no-any-return]
