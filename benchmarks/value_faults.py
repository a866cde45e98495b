"""How many faults `--values all` finds, and whether it names the right rank and the right call.

Each round runs one of the programs of benchmarks.faulty_programs with one fault, which follows from the round's seed:
one bit of one rank's result flipped, a chunk of it dropped, a part added twice; NaN in a gradient; a parameter changed
on one rank; weights that nobody broadcast; the same seed on all ranks. Programs run on ranks in one process (numpy
programs, and torch programs on threads) and on real Gloo ranks. Every program also runs without a fault, and has to be
silent. Rounds in which the fault changed no bit (a zero dropped) are drawn again. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.faulty_programs import (
    FAULTS,
    RESULTS,
    STEPS,
    Done,
    Plan,
    ddp,
    exchange,
    fsdp2,
    moe,
    tensor_parallel,
)
from benchmarks.tables import bench_table
from simcoll.backends.engine.outcome import Outcome
from simcoll.core.trace import Trace
from simcoll.testing import try_ranks
from simcoll.verifier.findings.finding import Finding

WIDTH = 80
MOST_DRAWS = 8
LIMIT_S = 600.0
"""Seconds for a round: on a machine that other jobs keep busy real ranks take their time."""

EXPECTED = {
    **dict.fromkeys(RESULTS, ("SC902", "SC903")),
    "NaN in a gradient": ("SC901",),
    "parameter changed": ("SC904",),
    "no broadcast": ("SC904",),
    "same seed": ("SC905",),
}
WEIGHTS = FAULTS[:6]
CALLS = FAULTS[:4]


@dataclass(frozen=True, slots=True)
class Workload:
    """A program on ranks of one kind, the faults that it can have, and the rounds of each fault."""

    name: str
    backend: str
    ranks: int
    faults: Sequence[str]
    rounds: int
    program: Callable[[int, Plan | None], Done] | None
    sums: bool = False

    @property
    def kind(self) -> str:
        """The kind of its ranks; sums of floats, of which each is on one rank alone, have a bound for errors."""
        return "float sums" if self.sums else "real ranks, Gloo" if self.backend == "gloo" else "one process"

    def run(self, plan: Plan | None, seed: int) -> Outcome[Done]:
        """Run it with a fault, or without."""
        if self.program is None:
            return try_ranks(
                self.ranks,
                partial(_exchange, plan, seed, self.sums),
                backend=self.backend,
                timeout=LIMIT_S,
                values="all",
            )
        return try_ranks(
            self.ranks, partial(_trained, self.program, plan), backend=self.backend, timeout=LIMIT_S, values="all"
        )


def _exchange(plan: Plan | None, seed: int, sums: bool, comm: object) -> Done:
    return exchange(comm, plan, seed, sums)  # type: ignore[arg-type]


def _trained(program: Callable[[int, Plan | None], Done], plan: Plan | None, rank: int) -> Done:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program(rank, plan)


WORKLOADS = (
    Workload("calls, numpy ranks", "simulated", 4, CALLS, 40, None),
    Workload("float sums, numpy ranks", "simulated", 4, RESULTS, 40, None, sums=True),
    Workload("DDP, threads", "threaded", 3, FAULTS, 16, ddp),
    Workload("MoE, threads", "threaded", 3, FAULTS, 12, moe),
    Workload("DDP, Gloo", "gloo", 3, FAULTS, 2, ddp),
    Workload("FSDP2, Gloo", "gloo", 4, FAULTS, 3, fsdp2),
    Workload("tensor parallel, Gloo", "gloo", 3, WEIGHTS, 3, tensor_parallel),
    Workload("MoE, Gloo", "gloo", 3, FAULTS, 2, moe),
)


@dataclass(frozen=True, slots=True)
class Round:
    """The verdict on one round: whether the fault was found, at the right rank, and at the right call or step."""

    workload: str
    fault: str
    seed: int
    found: bool
    rank: bool
    call: bool
    said: str


def judged(workload: Workload, plan: Plan, outcome: Outcome[Done]) -> Round | None:
    """The verdict; None where the fault has changed nothing."""
    done = outcome.results.get(plan.rank) or getattr(outcome.exceptions.get(plan.rank), "done", None)
    if done is not None and done.altered is None and (plan.fault in RESULTS or workload.program is None):
        return None
    finding = next((one for one in outcome.report.findings if one.code in EXPECTED[plan.fault]), None)
    if finding is None:
        said = "; ".join(f"{one.code} {one.message}" for one in outcome.report.findings)
        return Round(workload.name, plan.fault, plan.seed, False, False, False, said)
    # A process that raised has not told where.
    rank, call = _names(plan, finding), done is not None and _is_at(workload, plan, done, outcome, finding)
    return Round(workload.name, plan.fault, plan.seed, True, rank, call, f"{finding.code} {finding.message}")


def _names(plan: Plan, finding: Finding) -> bool:
    """True if a finding names the rank, and no other; of two that differ, neither may be named."""
    if plan.fault == "same seed":
        return plan.rank in finding.ranks and finding.culprits == ()
    return finding.culprits == (plan.rank,) or (
        finding.culprits == () and len(finding.ranks) == 2 and plan.rank in finding.ranks
    )


def _is_at(workload: Workload, plan: Plan, done: Done, outcome: Outcome[Done], finding: Finding) -> bool:
    if plan.fault == "parameter changed":
        # DistributedDataParallel is compared before the next step, a DTensor after it.
        steps = (plan.step + 1,) if workload.program in (ddp, moe) else (plan.step + 1, plan.step + 2)
        return any(f"after step {step}; after step {step - 1} all were equal" in finding.message for step in steps)
    if plan.fault == "no broadcast":
        return "before the first step" in finding.message
    if plan.fault == "same seed":
        return "from step 1 on" in finding.message
    if workload.program is None:
        return done.altered is not None and finding.sequence == done.altered + 1
    if finding.group is None:
        return False
    calls = _results(next(trace for trace in outcome.traces if trace.rank == plan.rank))
    here = (finding.group.name, finding.sequence)
    if plan.fault in RESULTS:
        return done.altered is not None and calls[done.altered] == here
    return here in calls[done.steps[plan.step] : done.steps[plan.step + 1]]


def _results(trace: Trace) -> list[tuple[str, int]]:
    """The calls of which a rank wrote down the result, in order: group and number."""
    written = [event.data for event in trace.events if event.kind == "values" and "received" in event.data]
    return [(trace.groups[int(str(one["group"]))].name, int(str(one["sequence"]))) for one in written]


def rounds_of(workload: Workload, most: int | None, first: int) -> list[Round]:
    """All rounds of a workload; raises RuntimeError if it is not silent without a fault."""
    clean = workload.run(None, first)
    if clean.exceptions or clean.report.findings:
        raise RuntimeError(f"{workload.name} without a fault: {clean.exceptions} {clean.report.findings}")
    results = min(one.steps[2] - one.steps[1] for one in clean.results.values())
    found = []
    for fault in workload.faults:
        for number in range(min(workload.rounds, most or workload.rounds)):
            for draw in range(MOST_DRAWS):
                seed = first + 1000 * draw + number
                plan = Plan.of(fault, seed, workload.ranks, results)
                verdict = judged(workload, plan, workload.run(plan, seed))
                if verdict is not None:
                    found.append(verdict)
                    break
    return found


def table(rounds: Sequence[Round]) -> Table:
    """Shares by fault and kind of ranks, and by program."""
    names = ("fault", "where", "rounds", "found", "rank", "call")
    made = bench_table("simcoll: faults found by --values all", *names, left=names[:2])
    kinds = {workload.name: workload.kind for workload in WORKLOADS}
    for fault in FAULTS:
        mine = [one for one in rounds if one.fault == fault]
        for kind in dict.fromkeys(kinds[one.workload] for one in mine):
            _add(made, fault, kind, [one for one in mine if kinds[one.workload] == kind])
    made.add_section()
    for workload in dict.fromkeys(one.workload for one in rounds):
        _add(made, "all of these", workload, [one for one in rounds if one.workload == workload])
    made.add_section()
    _add(made, "all", "", rounds)
    return made


def _add(made: Table, fault: str, where: str, rounds: Sequence[Round]) -> None:
    counts = [sum(flags) for flags in zip(*((one.found, one.rank, one.call) for one in rounds), strict=True)]
    made.add_row(fault, where, str(len(rounds)), *(f"{100 * count / len(rounds):.0f} %" for count in counts))


def main() -> None:
    """Run all rounds and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="rounds of each fault and program, at most")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--json", action="store_true", help="print all rounds as JSON")
    options = parser.parse_args()
    error = Console(stderr=True, width=WIDTH)
    rounds: list[Round] = []
    for workload in WORKLOADS:
        if options.only in workload.name:
            error.print(f"{workload.name}: {len(workload.faults)} faults", style="dim")
            rounds += rounds_of(workload, options.rounds, options.seed)
    if options.json:
        print(json.dumps({"schema": "simcoll.value_faults/1", "rounds": [asdict(one) for one in rounds]}, indent=2))
        return
    for one in rounds:
        if not (one.found and one.rank and one.call):
            error.print(f"{one.workload}, {one.fault}, seed {one.seed}: {one.said or 'not found'}", style="dim")
    out = Console(width=WIDTH)
    out.print(table(rounds))
    out.print(f"{len(rounds)} rounds of {STEPS} steps, Python {platform.python_version()}, torch {torch.__version__}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
