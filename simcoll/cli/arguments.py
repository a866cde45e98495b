"""The options that several commands have, requests made of them, and help pages that fit the terminal.

Importing this module imports neither rich nor numpy, so that every help page comes at once.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from simcoll.core.io import stated_path
from simcoll.errors import UsageError
from simcoll.topology.request import TopologyRequest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Request = TypeVar("Request", bound=DataclassInstance)

DRY_RUN_SECONDS = 600.0
"""The default time limit of each rank of a dry run, in seconds."""

_NARROWEST = 20
_GAP = re.compile(r" {2,}(?=\S)")


def add_output_arguments(parser: argparse._ActionsContainer) -> None:
    """Add ``--json`` and ``--plain``, which every command has."""
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, and nothing else there")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="text without boxes, colours and progress bars, for logs and screen readers",
    )


def add_github_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--github`` to a command that judges a job."""
    parser.add_argument(
        "--github", action="store_true", help="also print findings as annotations of a GitHub workflow, on stdout"
    )


def check_github(*, github: bool, json: bool) -> None:
    """Raise UsageError where stdout would carry both annotations and a JSON document."""
    if github and json:
        raise UsageError("--github does not go with --json, whose document is all that stdout carries")


def add_report_files(parser: argparse._ActionsContainer) -> None:
    """Add ``--html``, ``--sarif`` and ``--trace-events``, in which a report can be written beside what is shown."""
    parser.add_argument("--html", metavar="FILE", type=stated_path, help="also write the report as one HTML file")
    parser.add_argument("--sarif", metavar="FILE", type=stated_path, help="also write all findings as SARIF 2.1.0")
    parser.add_argument(
        "--trace-events",
        metavar="FILE",
        type=stated_path,
        help="also write a timeline of all calls, which Perfetto opens",
    )


def add_dry_run_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options of a dry run, which ``preflight`` and ``estimate`` have."""
    parser.add_argument("--steps", metavar="K", type=int, help="end each rank after K steps of an optimiser")
    parser.add_argument("--fake-tensors", action="store_true", help="tensors without memory, for large models")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="programs find pretended GPUs (cuda, default) or none"
    )
    parser.add_argument("--out", metavar="DIR", type=stated_path, help="where records, output and report go")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=DRY_RUN_SECONDS, help="for each rank (600)")
    parser.add_argument("--memory", metavar="GIB", type=float, help="address space of each rank (default: no limit)")
    parser.add_argument("--jobs", metavar="N", type=int, help="ranks at a time (default: the cores)")
    add_executor_argument(parser)


def add_executor_argument(parser: argparse._ActionsContainer) -> None:
    """Add ``--executor`` to a command whose work can be spread."""
    parser.add_argument(
        "--executor",
        metavar="ADDRESS",
        help="spread the work over a cluster: tcp://HOST:PORT (Dask), ray://HOST:PORT, slurm:..., or local processes",
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``run --help``; :mod:`simcoll.launch.torchrun_arguments` reads the command line itself."""
    parser.usage = "%(prog)s [options] [torchrun options] script.py [arguments]"
    parser.description = (
        "Start a job as torchrun does, record what every rank says to every other rank, and report what is wrong."
    )
    parser.epilog = (
        "All of torchrun's options pass through unchanged (--nproc-per-node, --standalone, --nnodes, -m, --no-python, "
        "...); `torchrun --help` lists them. Options end where the program begins."
    )
    parser.add_argument(
        "--mode",
        help="off: plain torchrun; record: write every call down; check: also prove in the background that the ranks "
        "agree; detail: prove that they agree on each call before it runs (default)",
    )
    parser.add_argument(
        "--values",
        help="off: values of collectives are not checked (default); all: those of every collective; sample: those of "
        "as many as take one hundredth of the time (SIMCOLL_VALUES_BUDGET)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where black boxes, report.json and report.html go (default: simcoll-out/ and the time)",
    )
    parser.add_argument(
        "--stall",
        metavar="SECONDS",
        help="end the job after this time without progress while a rank waits (default: after 30 seconds, and only if "
        "it is proved that the job can never go on)",
    )
    parser.add_argument(
        "--restart-by-cause",
        action="store_true",
        help="with --max-restarts: do not start ranks again if the cause would make them fail again",
    )
    add_strict_argument(parser)
    add_output_arguments(parser)
    add_github_argument(parser)


def add_strict_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--strict`` to a command that judges a job."""
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 3 also for warnings that mean a race or lost data: SC304, SC305, SC501, SC502, SC503",
    )


def request_of(kind: type[Request], options: argparse.Namespace, **others: object) -> Request:
    """A dataclass of the options that its fields name; ``others`` are the fields that are not options by themselves.

    A field called ``topology`` holds what the options of `add_topology_arguments` ask for.
    """
    named = {field.name for field in fields(kind)} - others.keys()
    given = {name: topology_request(options) if name == "topology" else getattr(options, name) for name in named}
    return kind(**given, **others)


class HelpPage(argparse.HelpFormatter):
    """A help page in the width of the terminal, 80 columns elsewhere; lines that argparse leaves wider are folded."""

    def format_help(self) -> str:
        """The page as text."""
        width = max(shutil.get_terminal_size().columns, _NARROWEST)
        return "".join(f"{line}\n" for text in super().format_help().splitlines() for line in _folded(text, width))


def _folded(text: str, width: int) -> list[str]:
    """A line in several, the further ones below the text beside its label, or a little to the right."""
    if len(text) <= width:
        return [text]
    gap = _GAP.search(text.strip())
    start = len(text) - len(text.lstrip())
    start += gap.end() if gap is not None else 2
    return textwrap.wrap(text, width, subsequent_indent=" " * min(start, width // 2))


def add_topology_arguments(
    parser: argparse.ArgumentParser, about: str = "a file or preset, or a cluster of like servers"
) -> None:
    """Add ``--topology FILE|PRESET``, or ``--gpu h100 --nodes 2`` and more, as a group of their own."""
    group = parser.add_argument_group("topology", about)
    group.add_argument("--topology", metavar="FILE|PRESET", help="a file, or a name that `simcoll topology list` shows")
    group.add_argument("--gpu", metavar="FAMILY", help="a100, h100, h200, b200, gb200, gb300, ... (default: h100)")
    group.add_argument("--nodes", metavar="N", type=int, help="number of servers (default: 1)")
    group.add_argument("--gpus-per-node", metavar="N", type=int, help="default: 8; 4 for gb200 and gb300")
    group.add_argument("--nics-per-node", metavar="N", type=int, help="default: one per GPU")
    group.add_argument("--nic-gbps", metavar="GBPS", type=float, help="Gbit/s of one NIC (default: 400)")
    group.add_argument("--fabric", metavar="NAME", help="ib, roce, efa, tcpx or tcpxo (default: ib)")
    group.add_argument("--nvlink-domain", metavar="GPUS", type=int, help="default: the node; 72 for gb200 and gb300")


def topology_request(options: argparse.Namespace) -> TopologyRequest:
    """Returns the parsed options of `add_topology_arguments`."""
    return TopologyRequest(*(getattr(options, field.name) for field in fields(TopologyRequest)))


def stated_seconds(text: str) -> float:
    """A time as it is typed, in seconds: more than none."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds greater than 0, got {text!r:.40}")
    return seconds
