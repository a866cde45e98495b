"""Searches the layouts of a model on a cluster for those with the shortest step that fit a GPU's memory.

Every layout that divides the model, the batch and the cluster is a candidate. What is left out without being priced
cannot win: a layout that does not fit, and one whose compute alone takes longer than the worst plan that is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import networkx as nx

from simcoll.core.executors import Spread
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


_SIZED, _PRICED = 2_000, 250
"""So many layouts are sized, or priced, by one task of an executor."""


def search(
    model: Model,
    topology: nx.DiGraph[Any] | Network,
    framework: Framework,
    fixed: Mapping[str, Any],
    *,
    keep: int = KEPT,
    tell: Callable[[int, int], None] | None = None,
    spread: Spread | None = None,
) -> Found:
    """The ``keep`` best layouts with the ``fixed`` fields of `Layout`; ``tell`` hears how many of how many are done.

    With ``spread`` its workers size and price the layouts; what is found is the same. Raises LayoutError where no
    layout divides model, batch and cluster, or none fits.
    """
    network = network_of(topology)
    count = network.gpus
    # What is wrong with the fixed fields by themselves is said first.
    widest = layout_of(fixed, count)
    layouts = list(candidates(model, count, fixed))
    if not layouts:
        check_layout(widest, model, count)
        raise LayoutError(f"no layout of {count:,} GPUs divides {model.name} and the batch; give fewer options")
    job = _Search(model, network, framework, Rates(network.family, widest.dtype, framework), keep)
    sized = sorted(job.sized(layouts, spread), key=lambda one: one.seconds)
    fitting = [one for one in sized if one.bytes <= network.capacity]
    if not fitting:
        least = min(one.bytes for one in sized) / GIB
        raise LayoutError(
            f"none of {len(layouts):,} layouts of {model.name} fits: the smallest takes {least:,.1f} GiB of "
            f"{network.capacity / GIB:,.0f}; give more GPUs, or --recompute full"
        )
    best = _Best(keep)
    for done, found in job.priced(fitting, best, spread):
        best.add(found)
        if tell is not None:
            tell(done, len(fitting))
    return Found(best.plans(), len(layouts), len(fitting))


@dataclass(frozen=True, slots=True)
class _Sized:
    """A layout, the bytes that it takes, and where that fits, the least seconds of a step."""

    layout: Layout
    bytes: float
    seconds: float


_Priced = tuple[int, Plan]
"""A plan, and its place among all that fit: the first of equal ones is kept."""


@dataclass(slots=True)
class _Best:
    """The plans with the shortest steps so far."""

    keep: int
    _heap: list[tuple[float, int, Plan]] = field(default_factory=list)

    @property
    def worst(self) -> float:
        """The step time that a plan has to beat."""
        return -self._heap[0][0] if len(self._heap) == self.keep else float("inf")

    def add(self, found: Iterable[_Priced]) -> None:
        """Take plans in, as far as they are among the best."""
        for place, plan in found:
            entry = (-plan.step_seconds, -place, plan)
            if len(self._heap) < self.keep:
                heapq.heappush(self._heap, entry)
            else:
                heapq.heappushpop(self._heap, entry)

    def priced(self) -> list[_Priced]:
        """The best plans with their places, the first one first."""
        return [(-place, plan) for _, place, plan in sorted(self._heap, reverse=True)]

    def plans(self) -> list[Plan]:
        """The best plans, the first one first."""
        return [plan for _, plan in self.priced()]


@dataclass(frozen=True, slots=True)
class _Search:
    """What a layout is sized and priced for; its tasks run here or on an executor's workers."""

    model: Model
    network: Network
    framework: Framework
    rates: Rates
    keep: int

    def sized(self, layouts: Sequence[Layout], spread: Spread | None) -> Iterator[_Sized]:
        """The layouts with their bytes and least seconds, in their order."""
        if spread is None:
            yield from self.size(layouts)
            return
        chunks = {begin: layouts[begin : begin + _SIZED] for begin in range(0, len(layouts), _SIZED)}
        found = {begin: sizes for (begin, _), sizes in spread.results(self._size_chunk, chunks.items())}
        for begin, chunk in chunks.items():
            yield from (_Sized(one, *size) for one, size in zip(chunk, found[begin], strict=True))

    def size(self, layouts: Iterable[Layout]) -> Iterator[_Sized]:
        """The layouts with their bytes and least seconds; those that do not fit are last in any order of seconds."""
        for one in layouts:
            total = memory_of(self.model, one, framework=self.framework).total
            fits = total <= self.network.capacity
            yield _Sized(one, total, _least_seconds(self.model, one, self.rates) if fits else float("inf"))

    def _size_chunk(self, chunk: tuple[int, Sequence[Layout]]) -> list[tuple[float, float]]:
        """Bytes and seconds alone: the layouts are where they came from."""
        return [(one.bytes, one.seconds) for one in self.size(chunk[1])]

    def priced(
        self, fitting: Sequence[_Sized], best: _Best, spread: Spread | None
    ) -> Iterator[tuple[int, Sequence[_Priced]]]:
        """Plans of the layouts as they are priced, and how many are done; none that cannot be among the best."""
        if spread is None:
            for place, one in enumerate(fitting):
                if one.seconds >= best.worst:
                    # The rest computes for longer still.
                    return
                yield place + 1, [(place, self._plan(one.layout))]
            return
        done = 0
        for (_, chunk), found in spread.results(self._price_chunk, self._chunks(fitting, best)):
            done += len(chunk)
            yield done, found

    def _chunks(self, fitting: Sequence[_Sized], best: _Best) -> Iterator[tuple[int, Sequence[_Sized]]]:
        """Layouts for a task, and the place of the first; each is made when there is a worker for it."""
        for begin in range(0, len(fitting), _PRICED):
            if fitting[begin].seconds >= best.worst:
                return
            yield begin, fitting[begin : begin + _PRICED]

    def _price_chunk(self, chunk: tuple[int, Sequence[_Sized]]) -> list[_Priced]:
        begin, layouts = chunk
        best = _Best(self.keep)
        for place, one in enumerate(layouts, begin):
            if one.seconds >= best.worst:
                break
            best.add([(place, self._plan(one.layout))])
        return best.priced()

    def _plan(self, layout: Layout) -> Plan:
        return plan_of(self.model, layout, self.network, self.framework)


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
