"""``simcoll demo``: a training loop on four simulated ranks with a planted bug, and the report on it; no torch needed.

Rank 2 takes the largest gradient where the others sum it: no backend notices, and the model is silently wrong.
"""

from __future__ import annotations

import argparse
import inspect

import numpy as np

from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.cli.arguments import add_output_arguments
from simcoll.cli.output import Output
from simcoll.core.ranges import ranks_text
from simcoll.spec.semantics import Array
from simcoll.verifier.findings.finding import Finding, Report

RANKS, STEPS = 4, 3
CODE, CULPRIT = "SC104", 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``demo`` to its parser."""
    add_output_arguments(parser)


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll demo``; 0 exactly when the report names the planted bug."""
    return main(json=options.json, plain=options.plain)


def train(comm: Comm) -> float:
    """One rank's program: data-parallel least squares; gives the last loss."""
    data = np.random.default_rng(comm.rank)
    weights = np.zeros(8, np.float32)
    if comm.rank == 0:
        weights += 0.5
    comm.broadcast(weights, root=0)
    loss = np.zeros(1, np.float32)
    for _ in range(STEPS):
        gradient, loss[0] = _backward(data, weights)
        average(comm, gradient)
        weights -= 0.1 * gradient
        comm.all_reduce(loss, op="sum")
    comm.barrier()
    return float(loss[0])


def average(comm: Comm, gradient: Array) -> None:
    """Average the gradient over the ranks."""
    if comm.rank == CULPRIT:
        comm.all_reduce(gradient, op="max")  # the planted bug
    else:
        comm.all_reduce(gradient, op="sum")
    gradient /= comm.size


def _backward(data: np.random.Generator, weights: Array) -> tuple[Array, float]:
    inputs = data.standard_normal((16, 8), np.float32)
    error = inputs @ weights - inputs.sum(axis=1)
    return inputs.T @ error / 16, float((error**2).mean())


def demo_report() -> Report:
    """Run the program on simulated ranks; returns the verdict on their records."""
    return simulate(train, RANKS).report


def main(*, json: bool = False, plain: bool = False) -> int:
    """Show the report; 0 exactly when it names the planted bug: its code, its rank and its line."""
    report = demo_report()
    output = Output(json=json, plain=plain)
    output.show(report)
    complaints = missed(report)
    for complaint in complaints:
        output.warn(f"the demo did not find what was planted: {complaint}")
    return 1 if complaints else 0


def missed(report: Report) -> list[str]:
    """Returns the faults of the report on the planted bug, a line each; empty if it is right."""
    if [finding.code for finding in report.findings] != [CODE]:
        return [f"findings are {[finding.code for finding in report.findings]}, expected [{CODE!r}]"]
    finding = report.findings[0]
    complaints = []
    if finding.culprits != (CULPRIT,):
        complaints.append(f"culprits are {ranks_text(finding.culprits)}, expected rank {CULPRIT}")
    if _planted_line() not in _lines(finding):
        complaints.append(f"line {_planted_line()} is not named for rank {CULPRIT}")
    return complaints


def _lines(finding: Finding) -> list[int]:
    return [stated.source.line for side in finding.sides if CULPRIT in side.ranks for stated in side.sources]


def _planted_line() -> int:
    lines, first = inspect.getsourcelines(average)
    return first + next(number for number, text in enumerate(lines) if "the planted bug" in text)
