"""How long a GPU takes over what a dry run counted: the roofline, by dtype; the makers' figures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from simcoll.pricing.collective_prices import PricingError
from simcoll.pricing.compute import Counted, per_step
from simcoll.pricing.rank_program import BLOCK, Program
from simcoll.pricing.roofline import NOTHING, PEAKS, OperatorWork, RooflineRates, WorkBetween, parse_work
from simcoll.topology.clusters import cluster
from simcoll.topology.graph import flat
from simcoll.topology.hardware import GPUS


def program(*work: OperatorWork) -> Program:
    """Calls with this work before them."""
    count = len(work)
    columns = np.full(count, BLOCK, np.uint8), np.arange(count, dtype=np.int32), np.zeros(count)
    return Program(*columns, np.arange(count, dtype=np.int32), True, WorkBetween.of(work))


def test_an_operator_takes_its_flops_or_its_bytes_whichever_is_longer():
    rates = RooflineRates({"bfloat16": 100.0, "float32": 10.0}, 1.0)
    assert rates.seconds(OperatorWork((("bfloat16", 9, 1000, 2),))) == 10.0
    assert rates.seconds(OperatorWork((("bfloat16", 0, 1000, 20),))) == 20.0
    assert rates.seconds(OperatorWork((("", 0, 0, 3), ("float32", 9, 1000, 2)))) == 103.0
    assert rates.seconds(NOTHING) == 0.0


def test_rates_that_were_fitted_so_add_both_and_attention_has_its_own():
    rates = RooflineRates({"bfloat16": 100.0, "bfloat16 attention": 50.0}, 1.0, adds=True)
    assert rates.seconds(OperatorWork((("bfloat16", 9, 1000, 2),))) == 12.0
    assert rates.seconds(OperatorWork((("bfloat16 attention", 9, 1000, 2),))) == 22.0
    assert RooflineRates({"bfloat16": 100.0}, 1.0).seconds(OperatorWork((("bfloat16 attention", 9, 1000, 2),))) == 10.0


def test_what_a_gpu_reaches_takes_the_place_of_a_share():
    one = program(OperatorWork((("bfloat16", 20, 10**15, 8),)))
    fitted = Counted(reached=lambda family: RooflineRates({"bfloat16": 1e15 if family == "h100" else 1e14}, 1e12))
    assert fitted.on(cluster(gpu="h100"))(one, None) == pytest.approx([1.0])
    assert fitted.on(cluster(gpu="a100"))(one, None) == pytest.approx([10.0])


def test_a_dtype_that_is_not_known_runs_as_the_slowest():
    assert (
        RooflineRates({"bfloat16": 100.0, "float32": 10.0}, 1.0).seconds(OperatorWork((("int4", 9, 1000, 2),))) == 100.0
    )


def test_counted_work_takes_the_time_of_the_topology_s_gpu():
    flops = 10**15
    one = program(OperatorWork((("bfloat16", 20, flops, 8),)), OperatorWork((("tf32", 20, flops, 8),)), NOTHING)
    for gpu in ("h100", "a100"):
        peak = PEAKS[gpu].flops
        found = Counted(0.5).on(cluster(gpu=gpu))(one, None)
        assert found == pytest.approx([flops / peak["bfloat16"] / 0.5, flops / peak["tf32"] / 0.5, 0.0])
    assert Counted(0.5, 1e15).on(cluster(gpu="a100"))(one, None) == pytest.approx([2.0, 2.0, 0.0])


def test_a_topology_that_names_no_gpu_needs_a_peak():
    bare = flat(ranks=4, bandwidth=1e9, latency=1e-6)
    with pytest.raises(PricingError, match="--gpu-peak"):
        Counted().on(bare)(program(OperatorWork((("bfloat16", 20, 8, 8),))), None)
    assert Counted(1.0, 8.0).on(bare)(program(OperatorWork((("bfloat16", 20, 8, 8),))), None) == pytest.approx([1.0])


def test_what_was_not_counted_stays_as_it_was_measured():
    one = replace(program(NOTHING), gap=np.array([3.0]), work=None)
    assert Counted().on(cluster())(one, None).tolist() == [3.0]


def test_seconds_of_a_step_are_spread_as_the_work_is():
    one = replace(program(NOTHING, NOTHING), gap=np.array([1.0, 3.0]))
    assert per_step(8.0)(one, None) == pytest.approx([2.0, 6.0])


def test_what_a_file_states_wrongly_is_no_work():
    row = ["bfloat16", 1, 2, 3]
    wrong = (["bfloat16", 1, 2], [1, 1, 2, 3], ["", 1, -2, 3], ["", 1, 10**400, 3], 4)
    assert parse_work([row, *wrong]) == OperatorWork((("bfloat16", 1, 2, 3),))


def test_every_gpu_has_its_figures():
    assert PEAKS.keys() == GPUS.keys()
    for peak in PEAKS.values():
        assert all(math.isfinite(value) and value > 0 for value in (*peak.flops.values(), peak.memory))
        assert peak.flops["bfloat16"] >= peak.flops["tf32"] >= peak.flops["float32"]
        assert peak.source
