"""The search of layouts: what it leaves out without pricing it is never the best."""

from __future__ import annotations

from typing import Any

import networkx as nx
import pytest

from simcoll.errors import PricingError
from simcoll.plan.layout import LayoutError
from simcoll.plan.model_files import model_named
from simcoll.plan.planning import plan_of
from simcoll.plan.rates import Framework
from simcoll.plan.search import candidates, search
from simcoll.topology.clusters import cluster
from simcoll.topology.graph import flat

TORCHTITAN = Framework("torchtitan")


@pytest.fixture(scope="module")
def topology() -> nx.DiGraph[Any]:
    return cluster(gpu="h100", nodes=4)


CASES = [
    ("llama3-8b", {"seq_len": 8192, "global_batch": 64}),
    ("llama3-70b", {"seq_len": 4096, "global_batch": 128}),
    ("qwen3-30b-a3b", {"seq_len": 4096, "global_batch": 64, "recompute": "full"}),
    ("llama3-8b", {"seq_len": 8192, "global_batch": 32, "tp": 2, "zero": 3}),
]


@pytest.mark.parametrize(("name", "fixed"), CASES)
def test_the_best_of_all_is_found(topology: nx.DiGraph[Any], name: str, fixed: dict[str, Any]) -> None:
    model = model_named(name)
    found = search(model, topology, TORCHTITAN, fixed, keep=5)
    layouts = list(candidates(model, 32, fixed))
    every = [one for one in (plan_of(model, layout, topology, TORCHTITAN) for layout in layouts) if one.fits]
    steps = sorted(one.step_seconds for one in every)
    assert [one.step_seconds for one in found.plans] == steps[:5]
    assert (found.layouts, found.fitting) == (len(layouts), len(every))
    assert len(set(layouts)) == len(layouts) > 10
    for key, value in fixed.items():
        assert {getattr(one.layout, key) for one in found.plans} == {value}


def test_every_layout_tells_its_progress(topology: nx.DiGraph[Any]) -> None:
    heard: list[tuple[int, int]] = []
    search(
        model_named("llama3-8b"),
        topology,
        TORCHTITAN,
        {"seq_len": 4096},
        tell=lambda done, total: heard.append((done, total)),
    )
    assert heard == [(place, heard[0][1]) for place in range(1, len(heard) + 1)]


@pytest.mark.parametrize(
    ("name", "fixed", "said"),
    [
        ("llama3.1-405b", {}, "of llama3.1-405b fits: the smallest takes"),
        ("llama3-8b", {"tp": 3}, "--tp 3"),
        ("llama3-8b", {"global_batch": 7, "pp": 1, "tp": 1}, "--global-batch is 7"),
        ("llama3-8b", {"layers": 7}, "layout: unknown 'layers'"),
    ],
)
def test_a_search_without_a_result_says_why(
    topology: nx.DiGraph[Any], name: str, fixed: dict[str, Any], said: str
) -> None:
    with pytest.raises(LayoutError, match=said):
        search(model_named(name), topology, TORCHTITAN, fixed)


def test_a_topology_that_names_no_gpu_is_refused() -> None:
    with pytest.raises(PricingError, match="its peak is not known"):
        search(model_named("llama3-8b"), flat(8, bandwidth=50e9, latency=1e-6), TORCHTITAN, {"seq_len": 4096})
