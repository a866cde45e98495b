"""Training jobs that take turns: one of each variant runs all the time, and makes steps when it is told to.

So what a machine does in a minute falls on all variants alike. But two equal jobs differ by some hundredths for as long
as they run. So the jobs of all variants, a set, are started anew several times. A ratio is that of the times of all
turns, with the bounds between which 95 of 100 draws of as many sets, and in each of as many rounds, from these lie.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.overhead import free_port, start

RANK_PROGRAM = Path(__file__).with_name("training_rank.py")
WRAPPERS = ("ddp", "fsdp2")
MEASURES = ("wall", "cpu")
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(64 << 30)}
"""Ranks keep the memory that they freed. Pages that the kernel clears anew in each step make steps unlike."""
DRAWS = 2_000

Turn = Mapping[str, float]
"""Seconds of the slowest rank (``wall``), CPU seconds of all (``cpu``), peak bytes of rank 0 (``memory``)."""
Round = Mapping[str, Turn]
"""A turn of each variant."""
Set = Sequence[Round]
"""The rounds of jobs that were started together."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How often jobs are started, the rounds of each set, the steps of a turn, those before the first, and the seconds
    after which neither a set nor a round begins, but the first.
    """

    sets: int
    rounds: int
    steps: int
    warm_up: int
    seconds: float


class Job:
    """The ranks of one variant, which make steps when they are told to."""

    def __init__(self, switches: Mapping[str, str], wrapper: str, tokens: int, ranks: int, folder: str) -> None:
        """``switches`` are the environment's; ``tokens`` those of a rank's batch."""
        program, port = [str(RANK_PROGRAM), wrapper, str(tokens)], free_port()
        self._processes = [
            start(program, {**KEPT_MEMORY, **switches}, rank, ranks, port, folder, subprocess.PIPE, None)
            for rank in range(ranks)
        ]

    def turn(self, steps: int) -> Turn:
        """What so many steps take."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return {
            "wall": max(one["wall"] for one in answers),
            "cpu": sum(one["cpu"] for one in answers),
            "memory": answers[0]["memory"],
        }

    def end(self) -> None:
        """End the ranks."""
        for process in self._processes:
            process.kill()
            process.communicate()


def take_turns(
    variants: Mapping[str, Mapping[str, str]],
    cell: tuple[str, int, int],
    extent: Extent,
    tell: Callable[[str, list[Set]], None],
) -> list[Set]:
    """The turns of jobs by variant, whose environments are given, another first in each round.

    A ``cell`` is a wrapper, the tokens of a rank's batch, and the number of ranks. ``tell`` is told after each set how
    it stands.
    """
    wrapper, tokens, ranks = cell
    names = list(variants)
    found: list[Set] = []
    began = time.monotonic()

    def goes_on() -> bool:
        return time.monotonic() - began < extent.seconds

    while not found or (len(found) < extent.sets and goes_on()):
        rounds: list[Round] = []
        with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
            jobs = {name: Job(variables, wrapper, tokens, ranks, folder) for name, variables in variants.items()}
            try:
                for job in jobs.values():
                    job.turn(extent.warm_up)
                while not rounds or (len(rounds) < extent.rounds and goes_on()):
                    place = len(rounds) % len(names)
                    rounds.append({name: jobs[name].turn(extent.steps) for name in names[place:] + names[:place]})
            finally:
                for job in jobs.values():
                    job.end()
        found.append(rounds)
        tell(f"{wrapper}, {tokens} tokens: {len(found)} sets, {time.monotonic() - began:.0f} s", found)
    return found


def ratio(sets: Sequence[Set], name: str, plain: str, measure: str) -> list[float]:
    """The ratio of a variant's times to those of the plain one, all turns together, and its bounds."""
    chance = np.random.default_rng(0)
    sums: list[list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = []
    for rounds in sets:
        draws = chance.integers(len(rounds), size=(DRAWS, len(rounds)))
        sums.append([np.array([one[key][measure] for one in rounds])[draws].sum(1) for key in (name, plain)])
    drawn = np.array(sums)[chance.integers(len(sets), size=(DRAWS, len(sets))), :, np.arange(DRAWS)[:, None]].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    ours, others = (sum(one[key][measure] for rounds in sets for one in rounds) for key in (name, plain))
    return [round(float(one), 3) for one in (ours / others, low, high)]


def all_turns(sets: Sequence[Set], name: str, measure: str) -> list[float]:
    """What each turn of a variant took."""
    return [one[name][measure] for rounds in sets for one in rounds]


def add_extent(parser: argparse.ArgumentParser) -> None:
    """The options for an :class:`Extent`."""
    parser.add_argument("--sets", type=int, default=6, help="how often the jobs are started anew (default: 6)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each variant in a set (default: 15)")
    parser.add_argument("--steps", type=int, default=1, help="of a turn (default: 1)")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first turn (default: 3)")
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="of a model, after which no round begins (default: 900)"
    )


def extent_of(options: argparse.Namespace) -> Extent:
    """What :func:`add_extent` has read."""
    return Extent(options.sets, options.rounds, options.steps, options.warm_up, options.seconds)
