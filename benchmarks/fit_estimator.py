"""Fit the estimator's constants on the measured rows, and write ``simcoll/estimator/calibration.json``.

    python -m benchmarks.fit_estimator [--no-validation] [--dry]

The constants are those that minimise the mean relative error over all series, each series counting alike, plus a
penalty for leaving the guesses below: few rows must not bend what they say nothing about. The search is deterministic:
each constant in turn, multiplied up or down by a step that shrinks. Cross-validation fits anew without the rows of one
provider, and predicts those.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import simcoll.estimator.calibration
from benchmarks.measured import Series, all_series
from simcoll.estimator.calibration import Calibration, from_json
from simcoll.estimator.nccl_tuner import chosen_from
from simcoll.estimator.shape import ClusterShape, shape_of
from simcoll.spec.collectives import COLLECTIVES
from simcoll.topology.clusters import cluster

TARGET = Path(simcoll.estimator.calibration.__file__).with_name("calibration.json")

_US = 1e-6
_PENALTY = 0.002


@dataclass(frozen=True, slots=True)
class Guess:
    """What a constant is before any row was seen, and how far it may well be off (a standard deviation of its log)."""

    value: float
    spread: float


GUESSES = {
    "launch": Guess(2 * _US, 0.5),
    "ring": Guess(0.97, 0.05),
    "ll128": Guess(0.9, 0.15),
    "ll_ring": Guess(0.6, 0.5),
    "fill_chain": Guess(60 * _US, 0.7),
    "fill_nvls": Guess(100 * _US, 0.7),
    "fill_network": Guess(80 * _US, 0.7),
    "fill_step": Guess(8.0, 0.7),
    "fill_reach": Guess(0.5, 0.5),
    "fill_tree": Guess(0.5, 0.7),
    "exchange": Guess(0.9, 0.1),
    "exchange_base": Guess(8 * _US, 0.3),
    "exchange_peer": Guess(1 * _US, 0.5),
    "generations.blackwell.launch": Guess(2 * _US, 0.5),
    "generations.blackwell.latency": Guess(1.2, 0.15),
    "generations.hopper.nvls": Guess(1.3, 0.1),
    "generations.blackwell.nvls": Guess(1.16, 0.1),
    "fabrics.ib.step": Guess(1 * _US, 1.0),
    "fabrics.ib.bandwidth": Guess(0.95, 0.05),
    "fabrics.ib.ring": Guess(0.92, 0.06),
    # Amazon's own figure for its network: the tuner of aws-ofi-nccl takes 20 us for a message.
    "fabrics.efa.step": Guess(20 * _US, 1.0),
    "fabrics.efa.bandwidth": Guess(0.9, 0.1),
    "fabrics.tcpx.step": Guess(450 * _US, 1.0),
    "fabrics.tcpx.bandwidth": Guess(0.73, 0.3),
    "fabrics.tcpxo.step": Guess(10 * _US, 1.0),
    "fabrics.tcpxo.bandwidth": Guess(0.94, 0.05),
}
"""The constants that are fitted. Bandwidths are bounded by the line rate, latencies are of NCCL's own order."""

_FIXED = {
    **{f"generations.{name}.launch": 0.0 for name in ("volta", "ampere", "hopper")},
    **{f"generations.{name}.latency": 1.0 for name in ("volta", "ampere", "hopper")},
    **{f"generations.{name}.nvls": 1.0 for name in ("volta", "ampere")},
    **{f"fabrics.{name}.once": 0.0 for name in ("ib", "roce", "efa")},
    **{f"fabrics.{name}.overlap": 0.0 for name in ("ib", "roce", "efa", "tcpxo")},
    **{f"fabrics.{name}.ring": 1.0 for name in ("tcpx", "tcpxo")},
    "fabrics.tcpx.overlap": 0.95,
}

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A series on its shape."""

    series: Series
    shape: ClusterShape


def constants(values: Values) -> Calibration:
    """The constants that follow from the fitted ones."""
    return from_json(text(values))


def text(values: Values) -> str:
    """``calibration.json``."""
    tree: dict[str, object] = {}
    for name, value in sorted({**values, **_FIXED, **_derived(values)}.items()):
        *folders, leaf = name.split(".")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})  # type: ignore[assignment]
        place[leaf] = float(f"{value:.4g}")
    return json.dumps(tree, indent=2) + "\n"


def _derived(values: Values) -> dict[str, float]:
    """What no row tells: RoCE, the parts of TCPX's latency, a ring's share of EFA's bandwidth.

    RoCE is Ethernet with remote memory access: InfiniBand's bandwidth, and a step between InfiniBand's and EFA's
    (geometric mean of whole steps, NCCL's 2.7 us included). Of TCPX only one collective with one step was measured:
    half of what it took is laid to the step, half to the collective.
    """
    table = 2.7 * _US
    middle = math.sqrt((values["fabrics.ib.step"] + table) * (values["fabrics.efa.step"] + table)) - table
    return {
        "fabrics.roce.step": middle,
        "fabrics.roce.bandwidth": values["fabrics.ib.bandwidth"],
        "fabrics.roce.ring": values["fabrics.ib.ring"],
        "fabrics.efa.ring": values["fabrics.ib.ring"],
        "fabrics.tcpx.once": values["fabrics.tcpx.step"],
        "fabrics.tcpxo.once": values["fabrics.tcpxo.step"],
    }


def errors(case: Case, calibration: Calibration) -> list[float]:
    """Signed relative errors of a series' rows."""
    series = case.series
    curves = chosen_from(COLLECTIVES[series.op], case.shape, calibration)
    predicted = [min(curve.seconds(size) for curve in curves) for size in series.sizes]
    return [guess / seconds - 1 for guess, seconds in zip(predicted, series.seconds, strict=True)]


def mean_error(cases: Iterable[Case], calibration: Calibration) -> float:
    """Mean over the series of their mean absolute relative errors."""
    each = [mean(map(abs, errors(case, calibration))) for case in cases]
    return mean(each)


def mean(values: Iterable[float]) -> float:
    """Their mean."""
    listed = list(values)
    return sum(listed) / len(listed)


def fit(cases: list[Case], rounds: int = 40) -> dict[str, float]:
    """The constants for those cases, by coordinate search from the guesses."""
    values = {name: guess.value for name, guess in GUESSES.items()}
    steps = {name: min(0.3, guess.spread) for name, guess in GUESSES.items()}
    best = _loss(cases, values)
    for _ in range(rounds):
        for name in GUESSES:
            found = _better(cases, values, name, steps[name], best)
            steps[name] *= 1.3 if found else 0.6
            if found:
                best, values = found
    return values


def _better(
    cases: list[Case], values: dict[str, float], name: str, step: float, best: float
) -> tuple[float, dict[str, float]] | None:
    """One constant moved up or down, if that helps."""
    for sign in (1, -1):
        moved = {**values, name: values[name] * math.exp(sign * step)}
        loss = _loss(cases, moved) if _possible(name, moved[name]) else best
        if loss < best:
            return loss, moved
    return None


def _possible(name: str, value: float) -> bool:
    """No network carries more than its line rate."""
    return not name.endswith((".bandwidth", ".ring")) or value <= 1.0


def _loss(cases: list[Case], values: Values) -> float:
    penalty = sum((math.log(values[name] / guess.value) / guess.spread) ** 2 for name, guess in GUESSES.items())
    return mean_error(cases, constants(values)) + _PENALTY * penalty


def report(cases: Iterable[Case], calibration: Calibration, title: str) -> list[float]:
    """Print the errors of each series; returns those of all rows."""
    rows: list[float] = []
    for case in cases:
        found = errors(case, calibration)
        large = [abs(e) for e, size in zip(found, case.series.sizes, strict=True) if size >= 1 << 26]
        print(f"{title} {case.series.name:70} {100 * mean(map(abs, found)):5.1f} % {100 * mean(large):5.1f} %")
        print("    " + " ".join(f"{100 * error:+.0f}" for error in found))
        rows += found
    return rows


def cross_validate(cases: list[Case]) -> None:
    """Leave out one provider at a time."""
    rows: list[float] = []
    for provider in dict.fromkeys(case.series.provider for case in cases):
        kept = [case for case in cases if case.series.provider != provider]
        out = [case for case in cases if case.series.provider == provider]
        rows += report(out, constants(fit(kept, rounds=25)), "held out")
    print(f"held out, all rows: {100 * mean(map(abs, rows)):.1f} %")


def main() -> None:
    """Fit, report, validate, write."""
    parser = argparse.ArgumentParser(description="Fit the estimator's constants on the measured rows.")
    parser.add_argument("--no-validation", action="store_true", help="leave the cross-validation out")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    cases = [Case(series, shape_of(cluster(**series.cluster))) for series in all_series()]
    values = fit(cases)
    print("series, mean error of all rows, of those from 64 MiB up; then each row's in per cent")
    rows = report(cases, constants(values), "fitted")
    print(f"fitted, all rows: {100 * mean(map(abs, rows)):.1f} %")
    if not options.no_validation:
        cross_validate(cases)
    if not options.dry:
        TARGET.write_text(text(values), encoding="utf-8")


if __name__ == "__main__":
    main()
