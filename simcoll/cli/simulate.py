"""``simcoll simulate``: play a scenario, or a Python program, on ranks in this process; verify, price and report."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.backends.engine.schedules import SENDS
from simcoll.cli.arguments import add_output_arguments, add_report_files
from simcoll.cli.topology_arguments import Commands, add_topology_arguments, is_topology_given, topology_of
from simcoll.core.io import stated_path
from simcoll.testing.options import BACKENDS

if TYPE_CHECKING:
    from simcoll.cli.output import Output
    from simcoll.reports.page_shell import PricedPage
    from simcoll.simulation.backends import Run
    from simcoll.simulation.scenario import Scenario
    from simcoll.topology.graph import Topology

_STALL = 5.0


def add_simulate_command(commands: Commands) -> None:
    """Add ``simulate`` to the command line's parser."""
    about = "play a scenario, or a Python program, on ranks in this process"
    parser = commands.add_parser(
        "simulate", help=about, description=f"{about[0].upper()}{about[1:]}; verify, price and report."
    )
    parser.add_argument(
        "target", metavar="SCENARIO|CODE|FILE.py[:FUNCTION]", help="a TOML file, a finding's code, or FUNCTION(comm)"
    )
    parser.add_argument("--ranks", metavar="N", type=int, help="how many ranks run a Python program")
    parser.add_argument("--backend", choices=BACKENDS, default="simulated", help="default: simulated")
    parser.add_argument("--seed", metavar="N", type=int, help="seed of the schedule (default: the scenario's, or 0)")
    parser.add_argument("--schedule", metavar="TEXT", help="replay this schedule, as an exploration gave it")
    parser.add_argument("--explore", metavar="N", type=int, help="try N schedules, report the smallest that fails")
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


def run_simulate(options: argparse.Namespace) -> int:
    """Carry out ``simcoll simulate``; the exit code of the contract."""
    from simcoll.cli.output import Output
    from simcoll.errors import BAD_INPUT, SimcollError
    from simcoll.launch.preconditions import PreconditionError

    outlet = Output(json=options.json, plain=options.plain)
    try:
        _check(options)
        if _program_of(options.target) is not None:
            return _run_program(options, outlet)
        return _run_scenario(options, outlet)
    except PreconditionError as error:
        return outlet.refuse(error.code, str(error))
    except (SimcollError, ValueError) as error:
        return outlet.refuse(BAD_INPUT, str(error))


def _check(options: argparse.Namespace) -> None:
    """What contradicts itself; raises ValueError."""
    if options.explore is not None and options.explore < 1:
        raise ValueError(f"--explore {options.explore}: expected how many schedules, at least 1")
    if not (math.isfinite(options.stall) and options.stall > 0):
        raise ValueError(f"--stall {options.stall}: expected seconds, more than 0")
    if options.explore is not None and options.schedule is not None:
        raise ValueError("--explore and --schedule: give one of them, a schedule is what exploring finds")
    simulated = ("explore", "schedule", "sends")
    given = [f"--{name}" for name in simulated if getattr(options, name) is not None]
    if options.backend != "simulated" and given:
        raise ValueError(f"{', '.join(given)}: only simulated ranks have it; leave --backend {options.backend} out")


def _run_scenario(options: argparse.Namespace, outlet: Output) -> int:
    from simcoll.simulation.rank_steps import check_steps
    from simcoll.simulation.reader import read_scenario

    if options.ranks is not None:
        raise ValueError(f"--ranks {options.ranks}: the scenario states its ranks; leave --ranks out")
    scenario = read_scenario(_scenario_path(options.target))
    check_steps(scenario)
    if options.check and scenario.expect is None:
        raise ValueError(f"{scenario.path}: --check needs an [expect] table, which says what is to be found")
    scenario = replace(
        scenario,
        seed=scenario.seed if options.seed is None else options.seed,
        sends=options.sends or scenario.sends,
    )
    return _conclude_scenario(options, outlet, scenario, _topology(options, scenario))


def _conclude_scenario(
    options: argparse.Namespace, outlet: Output, scenario: Scenario, topology: Topology | None
) -> int:
    """Run, compare and show."""
    from simcoll.simulation.backends import run_simulated
    from simcoll.simulation.expect import differences, unmet
    from simcoll.simulation.play_numpy import play
    from simcoll.simulation.report import Simulation

    simulated = (
        _explored(options, outlet, lambda comm: play(scenario, comm), scenario.ranks, topology, scenario)
        if options.explore is not None
        else run_simulated(scenario, topology, seed=scenario.seed, sends=scenario.sends, schedule=options.schedule)
    )
    shown, different = simulated, None
    if options.backend != "simulated":
        shown = _run_real(options, scenario)
        different = differences(simulated, shown)
    problems = None if scenario.expect is None else unmet(scenario, shown.report, simulated.seconds)
    simulation = Simulation(scenario.title, shown, simulated, problems, different, topology)
    return _hand_out(options, outlet, simulation)


def _run_real(options: argparse.Namespace, scenario: Scenario) -> Run:
    """The same scenario with torch: on threads, or on processes."""
    from simcoll.launch.preconditions import check_torch
    from simcoll.simulation.backends import run_gloo, run_threaded

    check_torch()
    if options.backend == "threaded":
        return run_threaded(scenario, seed=scenario.seed)
    if options.out is not None:
        return run_gloo(scenario, options.out, options.stall)
    with tempfile.TemporaryDirectory() as folder:
        return run_gloo(scenario, Path(folder), options.stall)


def _run_program(options: argparse.Namespace, outlet: Output) -> int:
    from simcoll.simulation.backends import run_of
    from simcoll.simulation.report import Simulation

    if options.backend != "simulated" or options.check:
        other = "--check" if options.check else f"--backend {options.backend}"
        raise ValueError(f"{other}: goes with a scenario; a Python program runs on simulated ranks")
    if options.ranks is None:
        raise ValueError(f"{options.target}: how many ranks run it? give --ranks N")
    program, topology = _loaded(options.target), _topology(options, None)
    if options.explore is not None:
        run = _explored(options, outlet, program, options.ranks, topology, None)
    else:
        from simcoll.backends.simulated import simulate

        outcome = simulate(
            program,
            options.ranks,
            topology,
            options.seed or 0,
            schedule=options.schedule,
            sends=options.sends or SENDS[0],
        )
        run = run_of(outcome, topology)
    return _hand_out(options, outlet, Simulation("", run, run, None, None, topology))


def _explored(
    options: argparse.Namespace,
    outlet: Output,
    program: Callable[[Any], object],
    ranks: int,
    topology: Topology | None,
    scenario: Scenario | None,
) -> Run:
    """Try schedules; the run that failed with the smallest one, or else the one in the default order."""
    from simcoll.backends.simulated import simulate
    from simcoll.simulation.backends import run_of
    from simcoll.simulation.explore import explore

    seed = scenario.seed if scenario is not None else options.seed or 0
    sends = scenario.sends if scenario is not None else options.sends or SENDS[0]
    found = explore(program, ranks, options.explore, topology, seed, sends=sends)
    if found.failing is None:
        outlet.warn(f"{found.tried:,} schedules tried, none fails")
        return run_of(simulate(program, ranks, topology, sends=sends), topology)
    outlet.warn(f"{found.tried:,} schedules tried, {found.failed:,} fail; this is the smallest; to replay it:")
    command = replay_command(options, found.failing.schedule)
    print(f"  {command}", file=sys.stderr, flush=True)  # noqa: T201  # one line of any length, to be copied
    return replace(run_of(found.failing, topology), replay=command, tried=found.tried, failed=found.failed)


def replay_command(options: argparse.Namespace, schedule: str) -> str:
    """The command line that replays a schedule: that of the exploration with ``--schedule`` in its place."""
    words = ["simcoll", "simulate", str(options.target)]
    left_out = (
        "command",
        "target",
        "explore",
        "schedule",
        "seed",
        "json",
        "plain",
        "html",
        "sarif",
        "trace_events",
        "out",
        "stall",
        "backend",
    )
    for name, value in vars(options).items():
        if name not in left_out and value is not None and value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join([*words, "--schedule", schedule])


def _hand_out(options: argparse.Namespace, outlet: Output, simulation: Any) -> int:
    """Write the files that were asked for, show everything, choose the exit code."""
    import json

    from simcoll.core.io import write_whole
    from simcoll.reports.html_report import html_report
    from simcoll.reports.sarif import sarif_report
    from simcoll.simulation.report import SimulationPicture, exit_code_of, simulation_document
    from simcoll.verifier.views.view import charted

    report, traces = simulation.shown.report, simulation.shown.traces
    code = exit_code_of(simulation, check=options.check)
    texts: list[tuple[Path | None, Callable[[], str]]] = [
        (options.html, lambda: html_report(report, charted(report, traces), **_priced(simulation))),
        (options.sarif, lambda: json.dumps(sarif_report(report, code, Path.cwd()), indent=2) + "\n"),
    ]
    for path, text in texts:
        try:
            if path is not None:
                write_whole(path, text())
        except OSError as error:
            raise ValueError(f"cannot write {path}: {error.strerror}; choose another file") from None
    if options.trace_events is not None:
        _write_timeline(options.trace_events, simulation, outlet)
    if options.out is not None:
        _make_folder(options.out)
        outlet.save(report, options.out, traces, **_priced(simulation))
    outlet.render(SimulationPicture(simulation), lambda: simulation_document(simulation))
    return code


def _write_timeline(path: Path, simulation: Any, outlet: Output) -> None:
    """The run that is shown, in its own time: virtual where it is simulated."""
    from simcoll.cli.verify import write_timeline

    run = simulation.shown if simulation.shown.traces else simulation.simulated
    if refused := write_timeline(path, run.traces, run.report.findings, outlet):
        raise ValueError(refused)


def _priced(simulation: Any) -> PricedPage:
    """What a page has of a run on a topology beside the report: the picture, and what the calls cost."""
    from simcoll.pricing.views.simulated_calls import priced_lines, priced_sheet
    from simcoll.pricing.views.topology_figure import topology_figure

    run, topology = simulation.simulated, simulation.topology
    figures = [] if topology is None else [topology_figure(topology, run.traces)]
    lines = [] if run.seconds is None else priced_lines(run.traces)
    return {"figures": figures, "tables": [priced_sheet(lines, run.seconds)] if lines else []}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot make the folder {folder}: {error.strerror}; choose another one") from None


def _topology(options: argparse.Namespace, scenario: Scenario | None) -> Topology | None:
    """That of the command line, otherwise the scenario's, with the links that the scenario makes slow."""
    from simcoll.simulation.slow_links import with_slow_links

    stated = None if scenario is None else scenario.topology
    found = topology_of(options) if is_topology_given(options) else None if stated is None else topology_of(stated)
    return found if scenario is None else with_slow_links(scenario, found)


def _scenario_path(target: str) -> Path:
    """A file, or the library's scenario of a code, also where a folder (a report's, say) has its name."""
    from simcoll.simulation.library import scenario_path

    path = Path(target)
    there = os.path.exists(path) and not os.path.isdir(path)
    return path if there else scenario_path(target) or path


def _program_of(target: str) -> tuple[Path, str] | None:
    """File and function of ``FILE.py[:FUNCTION]``; None for what is no Python program."""
    file, colon, function = target.rpartition(":")
    if colon and file.endswith(".py"):
        return Path(file), function
    return (Path(target), "main") if target.endswith(".py") else None


def _loaded(target: str) -> Callable[[Any], object]:
    """The function that a Python program defines; raises RefusedError where it cannot be had."""
    import runpy

    from simcoll.errors import BAD_INPUT, CANNOT_START
    from simcoll.launch.preconditions import PreconditionError, check_script
    from simcoll.simulation.table import nearest

    path, name = _program_of(target) or (Path(target), "main")
    check_script(path, compiles=True)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        defined = runpy.run_path(str(path), run_name="simcoll_program")
    except (Exception, SystemExit) as error:
        raise PreconditionError(CANNOT_START, f"{path}: {type(error).__name__}: {error}") from error
    found = defined.get(name)
    if not callable(found):
        functions = [each for each, value in defined.items() if callable(value)]
        raise PreconditionError(BAD_INPUT, f"{path} defines no function {name}(comm){nearest(name, functions)}")
    return found  # type: ignore[no-any-return]
