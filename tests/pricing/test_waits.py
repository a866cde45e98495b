"""Waits for stragglers and contention are added where sharded layers are gathered, and to no other job."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from simcoll.core.record import Group
from simcoll.pricing.collective_prices import JobPrices
from simcoll.pricing.job import Collectives, RecordedJob, Stream
from simcoll.pricing.rank_program import LAUNCH, WAIT, Program
from simcoll.pricing.roofline import RooflineRates
from simcoll.pricing.waits import with_waits

LAYERS = 4
WORLD = 64
OPS = ("all_gather", "reduce_scatter", "all_reduce")
GATHER, SCATTER, SUM = OPS
SHARDS = tuple(range(0, WORLD, 8))
TENSOR = tuple(range(8))
RATES = RooflineRates({"bfloat16": 1e15}, 1e12, stragglers=0.01, contention=0.1)

Calls = Sequence[tuple[str, tuple[int, ...]]]
NONE: Calls = ()


def ranks_met(calls: Calls, world: int = WORLD) -> tuple[float, float]:
    """The ranks for whose slowest rank 0 waits, and the contention; each call is beside a second of compute."""
    groups = tuple(dict.fromkeys(ranks for _, ranks in calls))
    count = len(calls)
    own = np.arange(count, dtype=np.int32)
    collectives = Collectives(
        np.array([groups.index(ranks) for _, ranks in calls], np.int32),
        own.astype(np.int64),
        np.array([OPS.index(op) for op, _ in calls], np.int32),
        np.full(count, 1 << 20, np.int64),
        np.ones(count, np.int32),
        OPS,
    )
    kind = np.tile(np.array([LAUNCH, WAIT], np.uint8), count)
    gap = np.tile(np.array([0.0, 1.0]), count)
    program = Program(kind, own.repeat(2), gap, np.arange(2 * count, dtype=np.int32), True)
    streams = tuple(Stream(Group(str(one), "", one), one, False, np.zeros(1, np.int32)) for one in groups)
    job = RecordedJob((0,), world, streams, collectives, (program,), (None,))
    half, links = np.full(count, 0.5), np.zeros(count, np.int64)
    slower, slowed = with_waits(job, JobPrices(half, half, links, links, ()), RATES)
    total = float(slower.programs[0].gap.sum())
    waited = slowed.stragglers[0] * total / count
    return round(math.exp(waited / RATES.stragglers), 6), float(slowed.contention[0])


def fsdp(shards: tuple[int, ...], forward: Calls = NONE, backward: Calls = NONE) -> Calls:
    """Two steps of layers that are gathered, with the calls that each makes besides."""
    down = [(GATHER, shards), *forward] * LAYERS
    back = [*[(GATHER, shards), *forward, (SCATTER, shards), *backward] * LAYERS]
    return [*down, *back] * 2


SEQUENCE = [(GATHER, TENSOR), (SCATTER, TENSOR)] * 2
SEQUENCE_BACKWARD = [(GATHER, TENSOR), (GATHER, TENSOR), (SCATTER, TENSOR)] * 2


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([(SUM, SHARDS)] * LAYERS, id="DDP"),
        pytest.param([(SUM, TENSOR)] * LAYERS, id="tensor parallel"),
        pytest.param([*SEQUENCE * LAYERS, *SEQUENCE_BACKWARD * LAYERS] * 2, id="sequence parallel"),
        pytest.param(
            [
                *[*[(GATHER, TENSOR)] * 3, (SCATTER, TENSOR)] * LAYERS,
                *[(GATHER, TENSOR), *[(SCATTER, TENSOR)] * 3] * LAYERS,
            ],
            id="sequence parallel, each projection by itself",
        ),
        pytest.param(
            [*[(GATHER, SHARDS)] * LAYERS, *[(SUM, SHARDS)] * LAYERS], id="parameters of an optimizer's shards"
        ),
    ],
)
def test_nothing_is_added_where_no_layer_is_gathered(calls: Calls) -> None:
    assert ranks_met(calls) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("calls", "met"),
    [
        pytest.param(fsdp(SHARDS), 8, id="FSDP"),
        pytest.param([*[(GATHER, SHARDS)] * LAYERS, *[(SCATTER, SHARDS)] * LAYERS] * 2, 8, id="kept for backward"),
        pytest.param([(SCATTER, SHARDS), *fsdp(SHARDS)], 8, id="a record that begins within a step"),
        pytest.param(fsdp(SHARDS, backward=[(SUM, (0, 1))]), 16, id="HSDP"),
        pytest.param(fsdp(SHARDS, forward=[(SUM, TENSOR)]), 8, id="FSDP x tensor parallel"),
        pytest.param(fsdp(SHARDS, SEQUENCE), 8, id="FSDP x sequence parallel"),
        pytest.param(fsdp(SHARDS, [(SUM, TENSOR)], [(SUM, (0, 1))]), 16, id="HSDP x tensor parallel"),
    ],
)
def test_layers_that_are_gathered_wait_for_the_slowest_of_shards_and_replicas(calls: Calls, met: int) -> None:
    ranks, contention = ranks_met(calls)
    assert ranks == met
    assert contention > 0
