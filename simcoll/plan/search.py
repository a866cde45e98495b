"""Searches the layouts of a model on a cluster for those with the shortest step that fit a GPU's memory.

Every layout that divides the model, the batch and the cluster is a candidate. What is left out without being priced
cannot win: a layout that does not fit, and one whose compute alone takes longer than the worst plan that is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx

from simcoll.plan.layout import RECOMPUTE, Layout, LayoutError, check_layout
from simcoll.plan.memory import GIB, memory_of
from simcoll.plan.model import Model
from simcoll.plan.network import Network, network_of
from simcoll.plan.planning import Plan, layout_of, plan_of
from simcoll.plan.rates import Framework, Rates
from simcoll.plan.work import work_of

KEPT = 10
"""Plans that are kept where no number is given."""

_LARGEST_TENSOR = 64
_LARGEST_MICRO_BATCH = 64


@dataclass(frozen=True, slots=True)
class Found:
    """The plans with the shortest steps, best first; how many layouts there were, and how many of them fit."""

    plans: Sequence[Plan]
    layouts: int
    fitting: int

    def document(self) -> Mapping[str, object]:
        """The search as JSON has it."""
        return {
            "schema": "simcoll.plan-search/1",
            "layouts": self.layouts,
            "fitting": self.fitting,
            "plans": [dict(found.document()) for found in self.plans],
        }


def search(
    model: Model,
    topology: nx.DiGraph[Any] | Network,
    framework: Framework,
    fixed: Mapping[str, Any],
    *,
    keep: int = KEPT,
    tell: Callable[[int, int], None] | None = None,
) -> Found:
    """The ``keep`` best layouts with the ``fixed`` fields of `Layout`; ``tell`` hears how many of how many are done.

    Raises LayoutError where no layout divides model, batch and cluster, or none fits.
    """
    network = network_of(topology)
    count = network.gpus
    # What is wrong with the fixed fields by themselves is said first.
    widest = layout_of(fixed, count)
    layouts = list(candidates(model, count, fixed))
    if not layouts:
        check_layout(widest, model, count)
        raise LayoutError(f"no layout of {count:,} GPUs divides {model.name} and the batch; give fewer options")
    rates, capacity = Rates(network.family, widest.dtype, framework), network.capacity
    fitting = (one for one in layouts if memory_of(model, one, framework=framework).total <= capacity)
    sized = sorted(((_least_seconds(model, one, rates), one) for one in fitting), key=lambda pair: pair[0])
    if not sized:
        least = min(memory_of(model, one, framework=framework).total for one in layouts) / GIB
        raise LayoutError(
            f"none of {len(layouts):,} layouts of {model.name} fits: the smallest takes {least:,.1f} GiB of "
            f"{capacity / GIB:,.0f}; give more GPUs, or --recompute full"
        )
    best: list[tuple[float, int, Plan]] = []
    for place, (least_seconds, layout) in enumerate(sized):
        if len(best) == keep and least_seconds >= -best[0][0]:
            # The rest computes for longer still.
            break
        found = plan_of(model, layout, network, framework)
        entry = (-found.step_seconds, -place, found)
        if len(best) < keep:
            heapq.heappush(best, entry)
        else:
            heapq.heappushpop(best, entry)
        if tell is not None:
            tell(place + 1, len(sized))
    plans = [found for _, _, found in sorted(best, reverse=True)]
    return Found(plans, len(layouts), len(sized))


def candidates(model: Model, gpus: int, fixed: Mapping[str, Any]) -> Iterator[Layout]:
    """Every layout with the fixed fields that divides model, batch and cluster; others are powers of two."""
    batch = fixed.get("global_batch", gpus)
    held = {name: fixed[name] for name in ("seq_len", "dtype", "compile") if name in fixed}

    def choices(name: str, others: Iterable[Any]) -> Iterable[Any]:
        return (fixed[name],) if name in fixed else others

    for tp in choices("tp", _powers(min(gpus, model.heads, _LARGEST_TENSOR))):
        for pp in choices("pp", _powers(min(gpus // tp, model.layers))):
            for cp in choices("cp", (1,)):
                rest = gpus // (tp * pp * cp)
                for replicas in choices("dp_replicate", (1,)):
                    shards = fixed.get("dp_shard", rest // replicas)
                    one = Layout(shards, replicas, tp, pp, cp=cp, global_batch=batch, **held)
                    yield from _within(model, one, gpus, choices)


def _within(
    model: Model, one: Layout, gpus: int, choices: Callable[[str, Iterable[Any]], Iterable[Any]]
) -> Iterator[Layout]:
    """The layouts of one division of the ranks."""
    experts = 1 if model.experts is None else min(model.experts.count, one.tp * one.cp * one.data_parallel)
    chunks = [stages for stages in _powers(16) if one.pp > 1 and _even(model, one.pp * stages)] or [1]
    for zero in choices("zero", (1, 3) if one.pp == 1 else (1,)):
        for ep in choices("ep", _powers(experts)):
            for virtual in choices("virtual_stages", chunks):
                for micro in choices("micro_batch", _powers(_LARGEST_MICRO_BATCH)):
                    for recompute in choices("recompute", RECOMPUTE):
                        schedule = next(iter(choices("schedule", ("interleaved" if virtual > 1 else "1f1b",))))
                        layout = replace(
                            one,
                            zero=zero,
                            ep=ep,
                            virtual_stages=virtual,
                            micro_batch=micro,
                            recompute=recompute,
                            schedule=schedule,
                        )
                        try:
                            check_layout(layout, model, gpus)
                        except LayoutError:
                            continue
                        yield layout


def _even(model: Model, chunks: int) -> bool:
    """True if chunks of a pipeline get equally many layers, or would if embedding and head counted as layers."""
    return chunks <= model.layers and (model.layers % chunks == 0 or (model.layers + 2) % chunks == 0)


def _powers(most: int) -> list[int]:
    """1, 2, 4 and so on up to ``most``."""
    return [1 << bit for bit in range(max(1, most).bit_length())]


def _least_seconds(model: Model, layout: Layout, rates: Rates) -> float:
    """The least time of a step: its compute, without any communication."""
    work = work_of(model, layout)
    each = rates.forward(work).total + rates.backward(work).total
    return layout.micro_batches * (each + rates.head(work)) / layout.pp
