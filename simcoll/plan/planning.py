"""`simcoll.plan`: what a training step of a model costs in a layout on a cluster, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from simcoll.errors import PricingError
from simcoll.plan.layout import DIVIDES_RANKS, PLAIN, Layout, LayoutError, Training, check_layout, made_ranks
from simcoll.plan.memory import Memory, memory_of
from simcoll.plan.model import Model
from simcoll.plan.model_files import model_named
from simcoll.plan.network import Network, network_asked, network_of
from simcoll.plan.program import Collective, conventions_of, program_of
from simcoll.plan.rates import FRAMEWORKS, Framework, Rates
from simcoll.plan.step import StepTime, step_time
from simcoll.plan.traffic import Traffic, traffic_of
from simcoll.plan.work import flops_per_token, work_of
from simcoll.topology.hardware import nearest
from simcoll.topology.request import TopologyRequest

SCHEMA = "simcoll.plan/1"

_IDLE = (
    "tensor parallel",
    "context parallel",
    "expert parallel",
    "data parallel",
    "pipeline messages",
    "pipeline bubble",
    "stragglers",
    "fixed",
)
"""Terms in which nothing is computed."""

_NAMED = 0.01
"""The share of a step from which a term is named."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A step of one layout. Seconds and bytes are those of the rank that takes most; ``fits`` a GPU's memory."""

    model: Model
    layout: Layout
    gpu: str
    framework: Framework
    step: StepTime
    memory: Memory
    capacity: float
    peak: float
    training: Training = PLAIN
    notes: tuple[str, ...] = field(default=())

    @property
    def step_seconds(self) -> float:
        """Seconds of a step."""
        return self.step.seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Tokens that each GPU is given a second."""
        return self.layout.global_batch * self.layout.seq_len / (self.step_seconds * self.layout.gpus)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: of the GPU's peak in 16 bits, whatever the dtype of the products."""
        return flops_per_token(self.model, self.layout.seq_len) * self.tokens_per_second_per_gpu / self.peak

    @property
    def memory_bytes(self) -> float:
        """Bytes at the worst moment."""
        return self.memory.total

    @property
    def fits(self) -> bool:
        """True if the memory of a GPU holds it."""
        return self.memory.total <= self.capacity

    def program(self, stage: int = 0) -> Sequence[Collective]:
        """The calls of the first rank of a pipeline stage in a step; raises LayoutError for an unknown stage."""
        rank = stage * self.layout.stage_size
        return program_of(self.model, self.layout, conventions_of(self.framework.name), rank, self.training)

    def document(self) -> Mapping[str, object]:
        """The plan as JSON has it, without its program."""
        return {
            "schema": SCHEMA,
            "model": self.model.name,
            "gpu": self.gpu,
            "gpus": self.layout.gpus,
            "framework": self.framework.name,
            "layout": {name: getattr(self.layout, name) for name in Layout.__slots__},
            "step_seconds": self.step_seconds,
            "compute_seconds": self.step.compute,
            "exposed_seconds": self.step.exposed + self.step.stragglers,
            "bubble_seconds": self.step.bubble,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "mfu": self.mfu,
            "memory_bytes": round(self.memory_bytes),
            "memory_capacity_bytes": round(self.capacity),
            "fits": self.fits,
            "terms": dict(self.step.terms()),
            "memory": {name: round(size) for name, size in self.memory.parts().items()},
            "notes": list(self.notes),
        }


def plan(
    model: str | Model,
    topology: nx.DiGraph[Any] | str | None = None,
    *,
    gpu: str | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    nic_gbps: float | None = None,
    framework: str = "torchtitan",
    **layout: Any,
) -> Plan:
    """The plan of a step of ``model``, computed in milliseconds and without a GPU.

    ``model`` is the name of one that comes with simcoll, a TOML file or a `Model`; ``topology`` a graph, a preset or a
    file, or else the cluster that ``gpu``, ``nodes`` and the like describe. ``layout`` has the fields of `Layout`;
    ``dp_shard`` is all ranks that are left where it is not given, ``global_batch`` one micro-batch for each data
    parallel rank. ``framework`` is one of torchtitan, megatron, nemo and llm-foundry.
    Raises ModelError, LayoutError, TopologyError, PricingError, one line each. Source: docs/plan.md.
    """
    described = model_named(model) if isinstance(model, str) else model
    network = _network(topology, TopologyRequest(None, gpu, nodes, gpus_per_node, None, nic_gbps))
    return plan_of(described, layout_of(layout, network.gpus), network, Framework(framework))


def plan_of(
    model: Model,
    layout: Layout,
    topology: nx.DiGraph[Any] | Network,
    framework: Framework,
    training: Training = PLAIN,
    clock: float = 1.0,
) -> Plan:
    """The plan of a whole description; raises what `plan` raises."""
    network = network_of(topology)
    check_layout(layout, model, network.gpus)
    if framework.name not in FRAMEWORKS:
        raise PricingError(f"--framework {framework.name!r:.40}: expected {nearest(framework.name, FRAMEWORKS)}")
    rates = Rates(network.family, layout.dtype, framework, clock=clock)
    traffic = traffic_of(model, layout, network, framework, training)
    times = step_time(model, layout, work_of(model, layout), traffic, rates, training)
    memory = memory_of(model, layout, training, framework)
    notes = (_limit(times), *_notes(layout, traffic, times, framework))
    return Plan(model, layout, network.family, framework, times, memory, network.capacity, rates.peak, training, notes)


def _limit(times: StepTime) -> str:
    """The part that takes most of a step, and the one that takes most of the time in which nothing is computed."""
    whole, terms = times.seconds, times.terms()
    most = max(terms, key=lambda name: terms[name])
    text = f"the largest part of a step: {most}, {terms[most] / whole:.0%}; all compute: {times.compute / whole:.0%}"
    idle = max(_IDLE, key=lambda name: terms[name])
    if terms[idle] < _NAMED * whole:
        return f"{text}; scaling is limited by nothing that takes {_NAMED:.0%}"
    return f"{text}; scaling is limited most by: {idle}, {terms[idle] / whole:.0%}"


def _notes(layout: Layout, traffic: Traffic, times: StepTime, framework: Framework) -> Iterator[str]:
    beside = traffic.gather_forward + traffic.gather_backward + traffic.scatter
    if beside > times.kernels.total:
        yield (
            f"parameters and gradients take {beside:.3g} s on the links, the layers {times.kernels.total:.3g} s: more "
            "tokens a GPU, or shards among fewer GPUs (--dp-replicate), would hide them"
        )
    if layout.pp > 1 and times.bubble > _NAMED * times.seconds:
        yield (
            f"{layout.micro_batches:,} micro-batches fill a pipeline of {layout.pp} stages: more of them "
            "(--global-batch), or virtual stages, make its bubble smaller"
        )
    if framework.name == "torchtitan":
        yield "measured rows do not separate torch.compile: --no-compile changes what activations take, and no time"


def _network(topology: nx.DiGraph[Any] | str | None, request: TopologyRequest) -> Network:
    if topology is None:
        return network_asked(request)
    if request.is_given:
        raise LayoutError("both a topology and the hardware of a cluster are given, expected one of them")
    return network_asked(TopologyRequest(topology)) if isinstance(topology, str) else network_of(topology)


def layout_of(given: Mapping[str, Any], gpus: int) -> Layout:
    """The layout with what is left out filled in; raises LayoutError for an unknown field, or ranks that do not fit."""
    unknown = [name for name in given if name not in Layout.__slots__]
    if unknown:
        raise LayoutError(f"layout: unknown {unknown[0]!r:.40}, expected {nearest(unknown[0], Layout.__slots__)}")
    values = {name: value for name, value in given.items() if value is not None}
    if "dp_shard" not in values:
        given = {name: values[name] for name in DIVIDES_RANKS if name in values}
        sizes = {name: size for name, size in given.items() if type(size) is int and size > 0}
        values["dp_shard"], left = divmod(gpus, math.prod(sizes.values()))
        if left:
            raise LayoutError(f"{made_ranks(sizes)}: expected a divisor of the {gpus:,} GPUs of the cluster")
    if "global_batch" not in values:
        parts = (values.get(name, 1) for name in ("micro_batch", "dp_shard", "dp_replicate"))
        values["global_batch"] = 1
        for part in parts:
            values["global_batch"] *= part if type(part) is int else 1
    return Layout(**values)
