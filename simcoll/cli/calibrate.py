"""``simcoll calibrate``: measures this cluster and writes a topology that prices collectives as they were measured."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType

from simcoll.cli.arguments import add_output_arguments
from simcoll.cli.files import check_writable
from simcoll.cli.output import Output
from simcoll.core.io import stated_path
from simcoll.core.text import plain
from simcoll.core.units import SizeError, parse_size
from simcoll.errors import BAD_INPUT, CANNOT_START, OK, TopologyError, UsageError
from simcoll.estimator.measured import (
    ATTRIBUTE,
    MEASURABLE,
    SCHEMA,
    SMALLEST,
    Measurement,
    curves_of,
    measurements,
    seconds,
)
from simcoll.launch.preconditions import PreconditionError, check_torch
from simcoll.reports.tables import Rows
from simcoll.topology.file import write_topology
from simcoll.topology.graph import Topology, connect, flat

_ABOUT = (
    "Measure this cluster with real collectives, and write a topology on which `simcoll estimate` prices what was not "
    "measured. All other options are torchrun's (default: --standalone, two ranks or one per GPU)."
)
_LEAST_BANDWIDTH = 1e6
_SEVERAL_HOSTS = ("--nnodes", "--master", "--rdzv", "--node")
_PLACEMENT = ("--standalone", *_SEVERAL_HOSTS)
_PROCESSES = ("--nproc",)


@dataclass(frozen=True, slots=True)
class Trial:
    """A size that was held back: its measured time, and the time predicted by the other sizes, in seconds."""

    row: Measurement
    predicted: float

    @property
    def error(self) -> float:
        """The excess of the prediction over the measured time, as a part of that."""
        return self.predicted / self.row.seconds - 1


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The result of a run of the measuring ranks."""

    backend: str
    device: str
    hosts: tuple[str, ...]
    measured: tuple[Measurement, ...]
    held_back: tuple[Measurement, ...]

    def trials(self) -> list[Trial]:
        """The held-back sizes beside their predictions."""
        known = curves_of(self.measured)
        predictions = [(row, seconds(known, row.op, row.bytes, row.ranks)) for row in self.held_back]
        return [Trial(row, predicted) for row, predicted in predictions if predicted is not None]

    def topology(self) -> Topology:
        """A graph whose bare links come close, and which carries the measurements."""
        graph = _graph(self.hosts, *_link(self.measured, len(self.hosts)))
        graph.graph["name"] = f"{self.device}, {len(self.hosts)} ranks, {self.backend}"
        graph.graph[ATTRIBUTE] = [asdict(row) for row in self.measured]
        return graph


def _link(rows: Sequence[Measurement], ranks: int) -> tuple[float, float]:
    """Bandwidth (bytes/s) and latency (s) of a star on which a ring all_reduce takes the measured times."""
    steps = 2 * (ranks - 1)
    whole = sorted((row.bytes, row.seconds) for row in rows if row.op == "all_reduce" and row.ranks == ranks)
    if not whole:
        whole = sorted((row.bytes, row.seconds) for row in rows if row.ranks == ranks)
        steps = ranks - 1
    (_, fastest), (largest, slowest) = whole[0], whole[-1]
    moving = max(slowest - fastest, 1e-9)
    return max(_LEAST_BANDWIDTH, steps * largest / ranks / moving), fastest / steps


def _graph(hosts: Sequence[str], bandwidth: float, latency: float) -> Topology:
    """A star of all ranks; on several hosts each has a node in between, so that a report can name its link."""
    if len(set(hosts)) == 1:
        return flat(len(hosts), bandwidth, latency)
    graph = Topology()
    graph.add_node("switch", kind="switch")
    shares = Counter(hosts)
    for host, share in shares.items():
        graph.add_node(f"{host}/nic", kind="nic", host=host)
        connect(graph, f"{host}/nic", "switch", bandwidth * share, latency / 2, link="network")
    for rank, host in enumerate(hosts):
        graph.add_node(f"gpu{rank}", kind="gpu", rank=rank, host=host)
        connect(graph, f"gpu{rank}", f"{host}/nic", bandwidth * shares[host], 0.0, link="pcie")
    return graph


def read(document: object) -> Calibrated:
    """Parses the document that the measuring ranks wrote; raises TopologyError for anything else."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise TopologyError(
            f"expected what `simcoll.estimator.calibration_rank` writes ({SCHEMA}); run `simcoll calibrate` again"
        )
    hosts, measured = document["hosts"], measurements(document["measured"])
    if not isinstance(hosts, list) or not hosts or not measured:
        raise TopologyError("no ranks or no sizes were measured, expected some of each; run `simcoll calibrate` again")
    return Calibrated(
        str(document["backend"]),
        str(document["device"]),
        tuple(map(str, hosts)),
        tuple(measured),
        tuple(measurements(document["held_back"])),
    )


def launch_command(torchrun: Sequence[str], result: Path, backend: str, ops: Sequence[str], most: int) -> list[str]:
    """The command line of torchrun for the measuring ranks; on this host alone where nothing else is said."""
    options = list(torchrun)
    if not any(option.startswith(_PLACEMENT) for option in _spelled(options)):
        options = ["--standalone", *options]
    if not any(option.startswith(_PROCESSES) for option in _spelled(options)):
        options.append(f"--nproc-per-node={'gpu' if has_gpu() else 2}")
    program = ["-m", "simcoll.estimator.calibration_rank", str(result), backend, ",".join(ops), str(most)]
    return [sys.executable, "-m", "torch.distributed.run", *options, *program]


def _spelled(options: Sequence[str]) -> list[str]:
    return ["--" + option[2:].replace("_", "-") for option in options if option.startswith("--")]


def has_gpu() -> bool:
    """True if this host has an NVIDIA driver with a device."""
    return Path("/dev/nvidia0").exists()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options to its parser."""
    parser.description = _ABOUT
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=stated_path,
        default=Path("topology.json"),
        help="a .json or .yaml file (default: topology.json)",
    )
    parser.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl where there is a GPU, else gloo")
    parser.add_argument("--ops", metavar="LIST", default=",".join(MEASURABLE), help=f"default: {', '.join(MEASURABLE)}")
    parser.add_argument("--max-bytes", metavar="SIZE", default="64MiB", help="the largest size (default: 64MiB)")
    add_output_arguments(parser)


def run_command(options: argparse.Namespace, torchrun: Sequence[str]) -> int:
    """Carry out ``simcoll calibrate``; the exit code of the contract."""
    output = Output(json=options.json, plain=options.plain)
    ops = tuple(op.strip() for op in options.ops.split(","))
    strange = [op for op in ops if op not in MEASURABLE]
    if strange:
        return output.refuse(BAD_INPUT, f"--ops: {strange[0]!r}, expected some of {', '.join(MEASURABLE)}")
    try:
        most = parse_size(options.max_bytes)
    except SizeError as error:
        return output.refuse(BAD_INPUT, f"--max-bytes: {error}")
    if most < SMALLEST:
        return output.refuse(BAD_INPUT, f"--max-bytes {options.max_bytes}: expected at least {SMALLEST}")
    try:
        check_torch()
        if not any(option.startswith(_SEVERAL_HOSTS) for option in _spelled(torchrun)):
            check_writable(options.out)
    except PreconditionError as error:
        return output.refuse(error.code, str(error))
    except UsageError as error:
        return output.refuse(BAD_INPUT, str(error))
    backend = options.backend or ("nccl" if has_gpu() else "gloo")
    return calibrate(CalibrateRequest(tuple(torchrun), options.out, backend, ops, most), output)


@dataclass(frozen=True, slots=True)
class CalibrateRequest:
    """The ``ops`` are measured up to ``most_bytes`` on ranks that torchrun starts; the topology goes to ``out``."""

    torchrun: tuple[str, ...]
    out: Path
    backend: str
    ops: tuple[str, ...]
    most_bytes: int


def calibrate(request: CalibrateRequest, output: Output) -> int:
    """Measure, write the topology and show its errors of prediction; the exit code of the contract."""
    with tempfile.TemporaryDirectory(prefix="simcoll-calibrate-") as folder:
        result = Path(folder) / "measured.json"
        environment = {name: value for name, value in os.environ.items() if name != "SIMCOLL_MODE"}
        environment.setdefault("OMP_NUM_THREADS", "1")
        command = launch_command(request.torchrun, result, request.backend, request.ops, request.most_bytes)
        code = subprocess.call(command, env=environment, stdout=sys.stderr)
        if code != 0:
            text = f"the measuring ranks ended with exit code {code}; their own message is above"
            return output.refuse(CANNOT_START, text)
        if not result.exists():
            # Rank 0 runs on another host, and writes there.
            return OK
        try:
            outcome = read_file(result)
        except TopologyError as error:
            return output.refuse(CANNOT_START, str(error))
    return _conclude(outcome, request.out, output)


def read_file(path: Path) -> Calibrated:
    """The result of the measuring ranks; raises TopologyError where it is none."""
    try:
        return read(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError) as error:
        raise TopologyError(f"{path}: {error}; run `simcoll calibrate` again") from None


def _conclude(outcome: Calibrated, out: Path, output: Output) -> int:
    if len(outcome.hosts) < 2:
        return output.refuse(BAD_INPUT, "one rank has nobody to talk to; give --nproc-per-node 2, or more")
    try:
        write_topology(out, outcome.topology())
    except TopologyError as error:
        return output.refuse(BAD_INPUT, str(error))
    trials = outcome.trials()
    output.render(_table(outcome, trials), lambda: _document(outcome, trials, out))
    output.line(f"{_mean_error(trials):.0%} mean error; topology written to {out}: give it as --topology {out}")
    return OK


def _table(outcome: Calibrated, trials: Sequence[Trial]) -> RenderableType:
    """The held-back sizes, measured and predicted."""
    table = Rows(title=plain(f"{outcome.backend}, sizes that were held back"), title_justify="left", box=SIMPLE_HEAD)
    for name in ("op", "ranks", "bytes", "measured us", "predicted us", "error"):
        table.add_column(name, justify="left" if name == "op" else "right", no_wrap=True)
    for trial in trials:
        row = trial.row
        times = (f"{1e6 * time:,.1f}" for time in (row.seconds, trial.predicted))
        table.add_row(plain(row.op), str(row.ranks), f"{row.bytes:,}", *times, f"{trial.error:+.0%}")
    return table


def _mean_error(trials: Sequence[Trial]) -> float:
    return fmean(abs(trial.error) for trial in trials) if trials else math.nan


def _document(outcome: Calibrated, trials: Sequence[Trial], out: Path) -> object:
    return {
        "schema": "simcoll.calibration/1",
        "topology": str(out),
        "backend": outcome.backend,
        "device": outcome.device,
        "hosts": outcome.hosts,
        "measured": [asdict(row) for row in outcome.measured],
        "held_back": [asdict(trial.row) | {"predicted": trial.predicted} for trial in trials],
    }
