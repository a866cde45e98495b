"""The output of ``simcoll simulate``: the report, call costs, unmet expectations, differences between backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from simcoll.core.text import plain
from simcoll.errors import FINDINGS, OK
from simcoll.pricing.views.simulated_calls import priced_lines, priced_table
from simcoll.reports.json_report import json_report
from simcoll.reports.terminal import TerminalReport
from simcoll.simulation.backends import Run
from simcoll.verifier.postmortem import exit_code

if TYPE_CHECKING:
    from simcoll.topology.graph import Topology

SCHEMA = "simcoll.simulation/1"


@dataclass(frozen=True, slots=True)
class Simulation:
    """The run that is shown, and the simulated one, which is the same unless another backend was asked for.

    ``unmet`` are the expectations that are not met, ``differences`` those between the two runs; None where there is
    nothing to compare with.
    """

    title: str
    shown: Run
    simulated: Run
    unmet: Sequence[str] | None
    differences: Sequence[str] | None
    topology: Topology | None = None


def exit_code_of(simulation: Simulation, *, check: bool) -> int:
    """The report's exit code, or 3 where backends disagree; with ``check`` 0 exactly if all expectations are met."""
    if check:
        return FINDINGS if simulation.unmet or simulation.differences else OK
    return exit_code(simulation.shown.report) or (FINDINGS if simulation.differences else OK)


@dataclass(frozen=True, slots=True)
class SimulationPicture:
    """A simulation as a rich renderable."""

    simulation: Simulation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        simulation = self.simulation
        if simulation.title:
            yield plain(simulation.title, "bold")
        yield TerminalReport(simulation.shown.report)
        run = simulation.simulated
        if run.seconds is not None and (lines := priced_lines(run.traces)):
            yield priced_table(lines, run.seconds)
        names = f"simulated and {simulation.shown.backend}"
        yield from _lines(simulation.differences, f"{names} agree", f"{names} differ")
        yield from _lines(simulation.unmet, "as the scenario expects", "not as the scenario expects")


def _lines(problems: Sequence[str] | None, good: str, bad: str) -> list[Text]:
    if problems is None:
        return []
    return [plain(f"{bad}: {problem}", "red") for problem in problems] or [plain(good, "green")]


def simulation_document(simulation: Simulation) -> dict[str, object]:
    """The JSON document of a simulation."""
    run = simulation.simulated
    lines = [] if run.seconds is None else [asdict(line) for line in priced_lines(run.traces)]
    document: dict[str, object] = {
        "schema": SCHEMA,
        "title": simulation.title,
        "backend": simulation.shown.backend,
        "report": json_report(simulation.shown.report),
        "seconds": run.seconds,
        "lines": lines,
        "schedule": run.schedule,
        "unmet": simulation.unmet,
        "differences": simulation.differences,
    }
    if run.tried:
        document["exploration"] = {"tried": run.tried, "failed": run.failed, "replay": run.replay}
    return document
