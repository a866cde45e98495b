"""Fits the shares of `simcoll plan` (``simcoll/plan/efficiency.json``) on measured training steps: ``make fit-plan``.

The rows are those of ``benchmarks/data/steptimes.csv``, each with its source. A share is fitted in logarithms by least
squares on the logarithm of the step time (Levenberg-Marquardt), where single rows count less the further they are off
(pseudo-Huber, 5 %), and is held near a first guess: what few rows measure stays where it is expected. ``--check`` fits
nothing and shows the errors; ``--cross`` fits without some of the rows and shows the errors on those: one source after
the other, one GPU, and one series (what has one source, model, GPU and precision), a twentieth of the series at a time.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
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
        if gpu == "h100":
            found[f"matmul.fp8-rowwise.{gpu}"] = (0.5, 0.3)
    for gpu in ("b200", "b300"):
        found[f"matmul.mxfp8.{gpu}"] = (0.7, 0.12)
        found[f"matmul.nvfp4.{gpu}"] = (0.45, 0.3)
    for gpu in ("h100", "b200", "b300"):
        found[f"experts.{gpu}"] = (0.5, 0.2)
    for name in ("llm-foundry", "torchtitan", "megatron", "nemo"):
        found[f"moved.{name}"] = (1.0, 0.5)
        found[f"launch.{name}"] = (2e-5, 1.0)
        found[f"fixed.{name}"] = (0.1, 0.6) if name == "megatron" else (0.01, 1.0)
    for release in ("25.09", "25.11", "26.02", "26.04", "26.06", "26.08"):
        found[f"megatron.{release}"] = (1.0, 0.3)
    for submitted in ("4.0", "4.1", "5.0", "5.1"):
        found[f"nemo.{submitted}"] = (1.0, 0.1)
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
        "tensor.in_pieces": (0.5, 0.3),
        "overlapped.exposed": (0.2, 0.7),
        "contention": (0.1, 0.7),
        "stragglers": (0.005, 1.0),
        "optimizer": (1.5, 0.4),
    }


class _Asked(dict[str, float]):
    """Shares that note which of them are asked for."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        super().__init__(shares)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The share, noted."""
        self.names.add(name)
        return super().get(name, default)


class Row:
    """A measured step with all of its plan that depends on no share."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.row = row
        self.step: MeasuredStep = measured_step(row)
        self.seconds = float(row["step_time_s"] or row["step_time_derived_s"])
        step = self.step
        self._work = work_of(step.model, step.layout)
        self._traffic = traffic_of(step.model, step.layout, step.network(), step.framework, step.training)
        asked = _Asked({name: guess for name, (guess, _) in guesses().items()})
        self.predicted(asked)
        self.uses = frozenset(asked.names)

    def predicted(self, shares: Mapping[str, float]) -> float:
        """Seconds of a step with these shares."""
        step = self.step
        rates = Rates(step.gpu, step.layout.dtype, step.framework, shares, step.clock)
        return step_time(step.model, step.layout, self._work, self._traffic, rates, step.training).seconds

    @property
    def system(self) -> str:
        """Where the row is from, and of MLPerf's who ran it: systems of others differ in more than their size."""
        return f"{self.source} {self.row['source'].partition(' ')[2].partition('/')[0]}"

    @property
    def series(self) -> tuple[str, str, str, str]:
        """What rows have in common that one table has under one heading."""
        return self.source, self.step.model.name, self.step.gpu, self.step.layout.dtype

    @property
    def source(self) -> str:
        """Where the row is from."""
        return self.row["source"].partition(" ")[0]


def fit(rows: Sequence[Row], rounds: int = 25, start: Mapping[str, float] | None = None) -> dict[str, float]:
    """The shares with which the rows are predicted best, sought from ``start``."""
    guessed = guesses()
    names = list(guessed)
    first = np.log([guessed[name][0] for name in names])
    belief = np.array([guessed[name][1] for name in names])
    measured = np.log([row.seconds for row in rows])
    users = [[place for place, row in enumerate(rows) if name in row.uses] for name in names]

    def off(point: Floats, places: Iterable[int]) -> Floats:
        shares = dict(zip(names, np.exp(point).tolist(), strict=True))
        found = np.array([np.log(rows[place].predicted(shares)) - measured[place] for place in places])
        robust: Floats = np.sign(found) * np.sqrt(2 * (np.sqrt(1 + (found / _KNEE) ** 2) - 1))
        return robust

    def residuals(point: Floats) -> Floats:
        return np.concatenate([off(point, range(len(rows))), (point - first) / belief])

    def slope(point: Floats, now: Floats) -> Floats:
        """Differences for derivatives, of the rows that a share has a part in."""
        found = np.zeros((len(now), len(names)))
        for column, places in enumerate(users):
            moved = point.copy()
            moved[column] += 1e-4
            found[places, column] = (off(moved, places) - now[places]) / 1e-4
            found[len(rows) + column, column] = 1 / belief[column]
        return found

    begin = first if start is None else np.log([start[name] for name in names])
    return dict(zip(names, np.exp(_least_squares(residuals, slope, begin, rounds)).tolist(), strict=True))


def _least_squares(
    residuals: Callable[[Floats], Floats], slope: Callable[[Floats, Floats], Floats], start: Floats, rounds: int
) -> Floats:
    """Levenberg-Marquardt."""
    point, damping, now = start, 1e-2, residuals(start)
    for _ in range(rounds):
        leads = slope(point, now)
        square = leads.T @ leads
        for _ in range(8):
            move = np.linalg.solve(square + damping * np.diag(np.diag(square)), -leads.T @ now)
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
    mixtures = np.array([row.step.model.experts is not None for row in rows])
    if mixtures.any():
        show("mixtures", off[mixtures])
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
    """Of pairs of one submitter's rows that differ in their GPUs alone: how many change the right way, and all."""
    alike: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        layout = row.step.layout
        per_rank = layout.global_batch / layout.data_parallel
        key = (row.system, row.step.model.name, row.step.gpu, layout.tp, layout.pp, layout.cp, layout.seq_len)
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


def cross(rows: Sequence[Row], shares: Mapping[str, float]) -> None:
    """Errors on what a fit has not seen."""
    ways: Sequence[tuple[str, Callable[[Row], object], int]] = (
        ("source", lambda row: row.source, 99),
        ("GPU", lambda row: row.step.gpu, 99),
        ("series", lambda row: row.series, 20),
    )
    for title, key, most in ways:
        names = sorted({key(row) for row in rows}, key=str)
        random.Random(0).shuffle(names)
        parts = min(most, len(names))
        unseen: list[tuple[Row, float]] = []
        for part in range(parts):
            out = set(names[part::parts])
            left = [row for row in rows if key(row) in out]
            rest = [row for row in rows if key(row) not in out]
            unseen += zip(left, errors(left, fit(rest, 6, shares)).tolist(), strict=True)
        print(f"\nleft out: {title}")
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
        cross(rows, shares)


if __name__ == "__main__":
    main()
