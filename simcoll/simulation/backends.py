"""Runs a scenario: on simulated ranks, on threads with torch tensors, or on real Gloo ranks in processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.backends.engine.outcome import Outcome
from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.blackbox.accounts import LAUNCH_PATTERN, STALL_PATTERN, read_launch, read_stalls
from simcoll.blackbox.gather import files_of, gather, matching
from simcoll.core.trace import Trace
from simcoll.errors import CANNOT_START, SimcollError
from simcoll.launch.preconditions import PreconditionError
from simcoll.simulation.play_numpy import play
from simcoll.simulation.player import Result, read_results
from simcoll.simulation.scenario import Scenario
from simcoll.verifier.findings.finding import Report
from simcoll.verifier.postmortem import judge

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology

MOST_PROCESSES = 64
"""The most ranks as processes of one machine."""

MOST_THREADS = 512
"""The most ranks as threads with torch tensors."""


class RunError(SimcollError):
    """A backend cannot run a scenario; one line."""


@dataclass(frozen=True, slots=True)
class Run:
    """The run of a scenario. ``seconds`` is virtual time, None without a topology; ``results`` are by rank.

    ``schedule`` replays it; ``replay`` is the command line for that where ``tried`` schedules were explored.
    """

    backend: str
    report: Report
    results: Mapping[int, Sequence[Result]] = field(default_factory=dict)
    seconds: float | None = None
    schedule: str = ""
    traces: Sequence[Trace] = ()
    replay: str = ""
    tried: int = 0
    failed: int = 0


def run_of(outcome: Outcome[Any], topology: Topology | None) -> Run:
    """The run of simulated ranks with this outcome."""
    results = {rank: found for rank, found in outcome.results.items() if isinstance(found, list)}
    seconds = None if topology is None else outcome.seconds
    return Run("simulated", outcome.report, results, seconds, outcome.schedule, outcome.traces)


def run_simulated(
    scenario: Scenario, topology: Topology | None, *, seed: int, sends: str, schedule: str | None = None
) -> Run:
    """Play the scenario on simulated ranks in this process."""

    def program(comm: Comm) -> list[Result]:
        return play(scenario, comm)

    outcome = simulate(program, scenario.ranks, topology, seed, schedule=schedule, sends=sends, values=scenario.values)
    return run_of(outcome, topology)


def run_threaded(scenario: Scenario, *, seed: int) -> Run:
    """Play the scenario on torch tensors, with threads of this process for ranks."""
    from simcoll.backends.threaded.run import run_threaded as run_threads
    from simcoll.simulation.play_torch import play_on_torch

    if scenario.ranks > MOST_THREADS:
        raise RunError(f"{scenario.path} has {scenario.ranks} ranks, expected at most {MOST_THREADS} as threads")
    # The result of a rank keeps its tensors alive until they have been judged.
    outcome = run_threads(scenario.ranks, lambda rank: play_on_torch(scenario), seed=seed, values=scenario.values)
    results = {rank: player.results for rank, player in outcome.results.items()}
    return Run("threaded", outcome.report, results, traces=outcome.traces)


def run_gloo(scenario: Scenario, folder: Path, stall: float) -> Run:
    """Play the scenario on real Gloo ranks under ``simcoll run``, which leaves its records in the folder.

    The job is ended after ``stall`` seconds without progress. Raises RunError for too many ranks, and
    :class:`~simcoll.launch.preconditions.PreconditionError` where they did not start.
    """
    if scenario.ranks > MOST_PROCESSES:
        raise RunError(f"{scenario.path} has {scenario.ranks} ranks, expected at most {MOST_PROCESSES} as processes")
    with tempfile.TemporaryDirectory() as results_folder:
        options = ["--mode", "detail", "--out", str(folder), "--stall", str(stall), "--json"]
        ranks = ["--standalone", f"--nproc-per-node={scenario.ranks}", "-m", "simcoll.simulation.gloo_rank"]
        command = [sys.executable, "-m", "simcoll", "run", *options, *ranks, str(Path(scenario.path).resolve())]
        done = subprocess.run(
            [*command, results_folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        results = {rank: found for rank in range(scenario.ranks) if (found := read_results(Path(results_folder), rank))}
    records = gather(files_of(folder), [read_launch(path) for path in matching(folder, LAUNCH_PATTERN)])
    if not records.traces:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise PreconditionError(CANNOT_START, f"the Gloo ranks did not start: {why}")
    stalls = read_stalls(matching(folder, STALL_PATTERN))
    return Run("gloo", judge(records.traces, records.outcome, stalls), results, traces=records.traces)
