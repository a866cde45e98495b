"""How right and how fast the estimator is: measured rows beside PyTorch's own model in the same run, and both engines.

    python -m benchmarks.estimate [--no-speed] [--json]

Errors are relative to the measured time: mean and median of their absolute values over all rows, and the mean from 64
MiB up. The estimator's constants were fitted on these very rows, so that the row that counts is *held out*: each
provider's rows as predicted by a fit without them. PyTorch's model (torch._inductor.comm_analysis) is told the GPU, the
GPUs of an NVLink domain, and what the domain's NICs carry together. Nothing here is a test: it measures.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar
from unittest import mock

from rich.console import Console
from rich.table import Table

import simcoll
from benchmarks.fit_estimator import Case, constants, errors, fit
from benchmarks.measured import all_series
from benchmarks.tables import bench_table
from simcoll.estimator.calibration import calibration
from simcoll.estimator.shape import shape_of
from simcoll.topology.clusters import cluster
from simcoll.topology.fat_trees import fat_tree
from simcoll.topology.graph import Topology

Value = TypeVar("Value")

LARGE = 1 << 26
RANKS = (8, 64, 1024, 16384)
GIB = 1 << 30
CALLS = 20_000


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A model's errors over all rows, as parts of the measured time."""

    model: str
    mean: float
    median: float
    large: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds to build a cluster and to price a first size in each engine, closed calls a second, peak MiB."""

    ranks: int
    network: str
    build: float
    first: float
    calls: float
    flow: float
    memory: float


def accuracy() -> list[Accuracy]:
    """The estimator as it is, as it predicts what it was not fitted to, and PyTorch's model."""
    cases = [Case(series, shape_of(cluster(**series.cluster))) for series in all_series()]
    return [
        _accuracy("simcoll, fitted on these rows", cases, lambda case: errors(case, calibration())),
        _accuracy("simcoll, held out by provider", cases, _held_out(cases)),
        _accuracy("PyTorch, told the NICs", cases, _torch_errors),
    ]


def _accuracy(model: str, cases: Iterable[Case], predict: Callable[[Case], list[float]]) -> Accuracy:
    found = [(size, abs(error)) for case in cases for size, error in zip(case.series.sizes, predict(case), strict=True)]
    every = [error for _, error in found]
    large = [error for size, error in found if size >= LARGE]
    return Accuracy(model, statistics.fmean(every), statistics.median(every), statistics.fmean(large))


def _held_out(cases: list[Case]) -> Callable[[Case], list[float]]:
    """One fit for each provider, without its rows."""
    providers = dict.fromkeys(case.series.provider for case in cases)
    fits = {
        provider: constants(fit([case for case in cases if case.series.provider != provider], rounds=25))
        for provider in providers
    }
    return lambda case: errors(case, fits[case.series.provider])


_TORCH_GPU = {"a100": "AMPERE", "h100": "HOPPER", "h200": "HOPPER"}


def _torch_errors(case: Case) -> list[float]:
    """PyTorch asks CUDA for the GPU and its number per node: it is answered from the row's cluster."""
    from torch._inductor import comm_analysis as torch_model
    from torch._inductor import config

    shape, series = case.shape, case.series
    kind = torch_model.NVIDIA_GPU_TYPE[_TORCH_GPU.get(shape.family or "", "BLACKWELL")]
    nics = None if shape.outside is None else shape.network / 1e9
    collective = torch_model.get_collective_type_from_kernel_name(series.op)
    with (
        mock.patch.object(torch_model, "get_gpu_type", return_value=kind),
        mock.patch.object(torch_model, "_has_nvlink", return_value=True),
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.device_count", return_value=round(shape.local)),
        config.patch(inter_node_bw=nics),
    ):
        told = [
            torch_model.estimate_nccl_collective_runtime_impl(size, shape.ranks, collective) * 1e-3
            for size in series.sizes
        ]
    return [guess / seconds - 1 for guess, seconds in zip(told, series.seconds, strict=True)]


def speeds() -> list[Speed]:
    """A flat cluster of H100 servers at each size, and a three-level fat tree at the largest."""
    found = [_speed(ranks, "one switch", lambda nodes: cluster(gpu="h100", nodes=nodes)) for ranks in RANKS]
    found.append(_speed(RANKS[-1], "fat tree", lambda nodes: fat_tree(levels=3, gpu="h100", nodes=nodes)))
    return found


def _speed(ranks: int, network: str, build: Callable[[int], Topology]) -> Speed:
    graph, building = _timed(lambda: build(ranks // 8))
    _, first = _timed(lambda: simcoll.estimate("all_reduce", GIB, graph))
    _, calls = _timed(lambda: [simcoll.estimate("all_reduce", 1024 * (1 + i), graph) for i in range(CALLS)])
    _, flow = _timed(lambda: simcoll.estimate("all_reduce", GIB, graph, algorithm="ring", engine="flow"))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Speed(ranks, network, building, first, CALLS / calls, flow, memory)


def _timed(work: Callable[[], Value]) -> tuple[Value, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def tables(right: Sequence[Accuracy], fast: Sequence[Speed]) -> Iterator[Table]:
    """How right each model is, and how fast simcoll estimates."""
    names = ("model", "mean error", "median", "from 64 MiB up")
    table = bench_table("measured nccl-tests rows", *names, left=("model",))
    for row in right:
        table.add_row(row.model, *(f"{100 * value:.1f} %" for value in (row.mean, row.median, row.large)))
    yield table
    if fast:
        columns = ("ranks", "network", "build s", "first estimate s", "estimates a second", "flow ring s", "peak MiB")
        table = bench_table("speed", *columns, left=("network",))
        for cost in fast:
            figures = (f"{cost.build:.2f}", f"{cost.first:.3f}", f"{cost.calls:,.0f}", f"{cost.flow:.2f}")
            table.add_row(str(cost.ranks), cost.network, *figures, f"{cost.memory:.0f}")
        yield table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How right and how fast the estimator is.")
    parser.add_argument("--no-speed", action="store_true", help="accuracy only")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    right, fast = accuracy(), [] if options.no_speed else speeds()
    if options.json:
        print(json.dumps({"accuracy": [asdict(row) for row in right], "speed": [asdict(row) for row in fast]}))
    else:
        Console().print(*tables(right, fast))


if __name__ == "__main__":
    main()
