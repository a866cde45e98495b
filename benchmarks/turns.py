"""Training jobs that take turns: one of each variant runs all the time, and makes steps when it is told to.

So what a machine does in a minute falls on all variants alike. A ratio is that of the times of all turns, with the
bounds between which 95 of 100 draws of as many rounds from these lie.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.overhead import free_port, start

RANK_PROGRAM = Path(__file__).with_name("training_rank.py")
WRAPPERS = ("ddp", "fsdp2")
MEASURES = ("wall", "cpu")
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(64 << 30)}
"""Ranks keep the memory that they freed. Pages that the kernel clears anew in each step make steps unlike."""
DRAWS = 2_000
_TOLD = 10
"""Rounds after which is told how it stands."""

Turn = Mapping[str, float]
"""Seconds of the slowest rank (``wall``), CPU seconds of all (``cpu``), peak bytes of rank 0 (``memory``)."""
Round = Mapping[str, Turn]
"""A turn of each variant."""


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
    sizes: tuple[int, int, int],
    seconds: float,
    tell: Callable[[str, list[Round]], None],
) -> list[Round]:
    """The turns of jobs by variant, whose environments are given, another first in each round.

    A ``cell`` is a wrapper, the tokens of a rank's batch, and the number of ranks; ``sizes`` are the rounds, the steps
    of a turn, and those before the first. After ``seconds`` no round but the first begins. ``tell`` is told at times
    how it stands.
    """
    (wrapper, tokens, ranks), (rounds, steps, warm_up) = cell, sizes
    names = list(variants)
    found: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="simcoll-bench-") as folder:
        jobs = {name: Job(variables, wrapper, tokens, ranks, folder) for name, variables in variants.items()}
        try:
            for job in jobs.values():
                job.turn(warm_up)
            began = time.monotonic()
            while not found or (len(found) < rounds and time.monotonic() - began < seconds):
                place = len(found) % len(names)
                found.append({name: jobs[name].turn(steps) for name in names[place:] + names[:place]})
                if len(found) % _TOLD == 0:
                    tell(f"{wrapper}, {tokens} tokens: {len(found)} rounds, {time.monotonic() - began:.0f} s", found)
        finally:
            for job in jobs.values():
                job.end()
    return found


def ratio(rounds: Sequence[Round], name: str, plain: str, measure: str) -> list[float]:
    """The ratio of a variant's times to those of the plain one, all turns together, and its bounds."""
    draws = np.random.default_rng(0).integers(len(rounds), size=(DRAWS, len(rounds)))
    ours, others = (np.array([one[key][measure] for one in rounds]) for key in (name, plain))
    low, high = np.quantile(ours[draws].sum(1) / others[draws].sum(1), (0.025, 0.975))
    return [round(float(one), 3) for one in (ours.sum() / others.sum(), low, high)]
