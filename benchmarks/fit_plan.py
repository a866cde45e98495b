"""Fits the shares of `simcoll plan` (``simcoll/plan/efficiency.json``) on measured training steps: ``make fit-plan``.

The rows are those of ``benchmarks/data/steptimes.csv``, each with its source. A share is fitted in logarithms by least
squares on the logarithm of the step time (Levenberg-Marquardt), where single rows count less the further they are off
(pseudo-Huber, 5 %), and is held near a first guess: what few rows measure stays where it is expected. ``--check`` fits
nothing and shows the errors; ``--cross`` leaves out one source after the other and shows the errors on what was left
out, then each half of the rows.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.errors import SimcollError
from simcoll.plan.measured_steps import MeasuredStep, measured_step
from simcoll.plan.rates import Rates, fitted_shares
from simcoll.plan.step import step_time
from simcoll.plan.traffic import traffic_of
from simcoll.plan.work import work_of

ROWS = Path(__file__).parent / "data" / "steptimes.csv"
SHARES = Path(__file__).parents[1] / "simcoll" / "plan" / "efficiency.json"

Floats = npt.NDArray[np.float64]

_KNEE = 0.05
"""Relative errors above this count less than their square."""


def guesses() -> dict[str, tuple[float, float]]:
    """A first guess of each share, and within which factor (as a logarithm) it is believed."""
    found: dict[str, tuple[float, float]] = {}
    for gpu in ("a100", "h100", "b200", "b300", "l40s"):
        found[f"matmul.bf16.{gpu}"] = (0.85 if gpu == "a100" else 0.75, 0.15)
        found[f"attention.{gpu}"] = (0.5, 0.3)
        found[f"memory.{gpu}"] = (0.75, 0.1)
    for gpu in ("h100", "b200", "b300", "l40s"):
        found[f"matmul.fp8.{gpu}"] = (0.7, 0.12)
    for gpu in ("b200", "b300"):
        found[f"matmul.mxfp8.{gpu}"] = (0.7, 0.12)
        found[f"matmul.nvfp4.{gpu}"] = (0.45, 0.3)
    for gpu in ("h100", "b200", "b300"):
        found[f"experts.{gpu}"] = (0.5, 0.5)
    for name in ("llm-foundry", "torchtitan", "megatron", "nemo"):
        found[f"moved.{name}"] = (1.0, 0.5)
        found[f"launch.{name}"] = (2e-5, 1.0)
    for release in ("25.09", "25.11", "26.02", "26.04", "26.06", "26.08"):
        found[f"megatron.{release}"] = (1.0, 0.3)
    return found | {
        "attention.flash2_on_hopper": (0.6, 0.4),
        "quantised": (2.0, 0.5),
        "logits": (3.0, 0.5),
        "permuted": (4.0, 0.5),
        "scanned": (1.0, 0.6),
        "routing": (1e-4, 1.0),
        "routing.server": (2.0, 0.5),
        "expert.exposed": (0.5, 0.5),
        "tensor.exposed": (0.6, 0.5),
        "overlapped.exposed": (0.2, 0.7),
        "contention": (0.1, 0.7),
        "optimizer": (1.5, 0.4),
        "step.fixed": (0.01, 1.0),
    }


class Row:
    """A measured step with all of its plan that depends on no share."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.row = row
        self.step: MeasuredStep = measured_step(row)
        self.seconds = float(row["step_time_s"] or row["step_time_derived_s"])
        step = self.step
        self._work = work_of(step.model, step.layout)
        self._traffic = traffic_of(step.model, step.layout, step.network(), step.framework, step.training)

    def predicted(self, shares: Mapping[str, float]) -> float:
        """Seconds of a step with these shares."""
        step = self.step
        rates = Rates(step.gpu, step.layout.dtype, step.framework, shares)
        return step_time(step.model, step.layout, self._work, self._traffic, rates, step.training).seconds

    @property
    def source(self) -> str:
        """Where the row is from."""
        return self.row["source"].partition(" ")[0]


def fit(rows: Sequence[Row], rounds: int = 25) -> dict[str, float]:
    """The shares with which the rows are predicted best."""
    start = guesses()
    names = list(start)
    first = np.log([start[name][0] for name in names])
    belief = np.array([start[name][1] for name in names])
    measured = np.log([row.seconds for row in rows])

    def residuals(point: Floats) -> Floats:
        shares = dict(zip(names, np.exp(point).tolist(), strict=True))
        off = np.log([row.predicted(shares) for row in rows]) - measured
        robust = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + (off / _KNEE) ** 2) - 1))
        return np.concatenate([robust, (point - first) / belief])

    return dict(zip(names, np.exp(_least_squares(residuals, first, rounds)).tolist(), strict=True))


def _least_squares(residuals: Callable[[Floats], Floats], start: Floats, rounds: int) -> Floats:
    """Levenberg-Marquardt with differences for derivatives."""
    point, damping, now = start, 1e-2, residuals(start)
    for _ in range(rounds):
        steps = [residuals(point + 1e-4 * axis) for axis in np.eye(len(point))]
        slope = (np.array(steps) - now).T / 1e-4
        square = slope.T @ slope
        for _ in range(8):
            move = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slope.T @ now)
            then = residuals(point + move)
            if then @ then < now @ now:
                damping /= 5
                break
            damping *= 5
        else:
            return point
        gained = now @ now - then @ then
        point, now = point + move, then
        if gained < 1e-4 * (now @ now):
            return point
    return point


def errors(rows: Iterable[Row], shares: Mapping[str, float]) -> Floats:
    """Relative errors of the predictions."""
    return np.array([row.predicted(shares) / row.seconds - 1 for row in rows])


def show(title: str, off: Floats) -> None:
    """One line of a table."""
    size = 100 * np.abs(off)
    print(
        f"{title:44s} {len(off):4d} rows  mean {size.mean():5.1f} %  median {np.median(size):5.1f} %  "
        f"worst {size.max():5.1f} %  bias {100 * off.mean():+5.1f} %"
    )


def report(rows: Sequence[Row], off: Floats) -> None:
    """Errors by source, GPU and precision, and of dense models in bf16."""
    show("all", off)
    dense = np.array([row.step.layout.dtype == "bf16" and row.step.model.experts is None for row in rows])
    if dense.any():
        show("dense, bf16", off[dense])
    keys: Sequence[tuple[str, Callable[[Row], str]]] = (
        ("source", lambda row: row.source.rpartition("@")[0].rpartition("/")[2] or row.source),
        ("gpu", lambda row: row.step.gpu),
        ("precision", lambda row: row.step.layout.dtype),
        ("model", lambda row: row.step.model.name),
    )
    for title, key in keys:
        parts: dict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            parts[key(row)].append(place)
        for name, places in sorted(parts.items()):
            show(f"{title} {name}", off[places])


def series_right(rows: Sequence[Row], shares: Mapping[str, float]) -> tuple[int, int]:
    """Of pairs of rows that differ in the number of GPUs alone: how many change the right way, and all."""
    alike: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        layout = row.step.layout
        per_rank = layout.global_batch / layout.data_parallel
        key = (row.source, row.step.model.name, row.step.gpu, layout.tp, layout.pp, layout.cp, layout.seq_len)
        alike[(*key, layout.micro_batch, per_rank, layout.dtype, layout.zero, row.step.framework)].append(row)
    right = total = 0
    for group in alike.values():
        for place, one in enumerate(group):
            for other in group[:place]:
                if one.step.gpus != other.step.gpus and abs(one.seconds / other.seconds - 1) > 0.005:
                    total += 1
                    grows = one.predicted(shares) > other.predicted(shares)
                    right += grows == (one.seconds > other.seconds)
    return right, total


def cross(rows: Sequence[Row]) -> None:
    """Errors on what a fit has not seen."""
    sources = sorted({row.source for row in rows})
    unseen: list[tuple[Row, float]] = []
    for source in sources:
        rest = [row for row in rows if row.source != source]
        left = [row for row in rows if row.source == source]
        if rest:
            unseen += zip(left, errors(left, fit(rest, 12)).tolist(), strict=True)
    print("\nleft out: one source at a time")
    report([row for row, _ in unseen], np.array([off for _, off in unseen]))
    folds = 2
    unseen = []
    for fold in range(folds):
        left = list(rows[fold::folds])
        rest = [row for place, row in enumerate(rows) if place % folds != fold]
        unseen += zip(left, errors(left, fit(rest, 12)).tolist(), strict=True)
    print("\nleft out: each half of the rows")
    report([row for row, _ in unseen], np.array([off for _, off in unseen]))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="benchmarks.fit_plan", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="show the errors of the shares as they are")
    parser.add_argument("--cross", action="store_true", help="also fit without each source, and show the errors there")
    options = parser.parse_args()
    rows = []
    with ROWS.open(newline="") as file:
        for row in csv.DictReader(file):
            try:
                rows.append(Row(row))
            except SimcollError as error:
                print(f"row {row['id']} is left out: {error}")
    shares: Mapping[str, float] = fitted_shares() if options.check else fit(rows)
    report(rows, errors(rows, shares))
    right, total = series_right(rows, shares)
    print(f"pairs of a series with the right sign: {right} of {total}")
    if not options.check:
        rounded = {name: float(f"{value:.4g}") for name, value in shares.items()}
        document = {
            "schema": "simcoll.efficiency/1",
            "made_by": "make fit-plan",
            "rows": len(rows),
            "sources": sorted({row.source for row in rows}),
            "shares": rounded,
        }
        SHARES.write_text(json.dumps(document, indent=1) + "\n")
        print(f"written: {SHARES}")
    if options.cross:
        cross(rows)


if __name__ == "__main__":
    main()
