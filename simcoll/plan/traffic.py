"""What a step communicates, collective by collective, and what each costs on a topology (`simcoll.estimator`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx as nx

from simcoll.estimator.estimate import estimate
from simcoll.plan.layout import ADAPTERS, PLAIN, Layout, Training
from simcoll.plan.model import Model
from simcoll.plan.rates import Framework

_HALF = 2
"""Bytes of a parameter or activation as it is sent."""

_WIDE_GRADIENTS = ("torchtitan",)
"""Frameworks that reduce gradients in 32 bits."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of each collective, alone.

    ``tensor`` is one all_gather and one reduce_scatter of a micro-batch's activations, ``context`` one exchange of its
    keys and values, ``expert`` one all_to_all of its tokens, ``stage`` one message to the next pipeline stage.
    ``gather`` and ``scatter`` are those of one layer's parameters and gradients over their shards (ZeRO 3), ``outer``
    those of what stands outside the layers; ``gradients`` and ``parameters`` those of all that a rank holds (ZeRO 0 to
    2), ``replicas`` the all_reduce of shards among replicas.
    """

    tensor: float
    context: float
    expert: float
    stage: float
    gather: float
    scatter: float
    outer: float
    gradients: float
    parameters: float
    replicas: float


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters of one rank of a stage before any of ZeRO's sharding: outside the experts, and of its experts."""

    common: float
    experts: float


def held(model: Model, layout: Layout) -> Held:
    """The parameters of a rank of a pipeline stage, on average over the stages."""
    counts = model.counts()
    return Held(
        (model.total - counts["experts"]) / (layout.tp * layout.pp), counts["experts"] / (layout.ep * layout.pp)
    )


def traffic_of(
    model: Model, layout: Layout, topology: nx.DiGraph[Any], framework: Framework, training: Training = PLAIN
) -> Traffic:
    """The collectives of a step; raises EstimateError and TopologyError where the topology cannot carry them."""
    trained = ADAPTERS if training.adapters else 1.0
    gradient_bytes = 2 * _HALF if framework.name in _WIDE_GRADIENTS else _HALF

    def seconds(op: str, size: float, ranks: tuple[int, ...]) -> float:
        return estimate(op, round(size), topology, ranks=ranks).seconds if len(ranks) > 1 and size >= 1 else 0.0

    wide, rows = model.hidden, layout.tokens
    activations = rows * wide * _HALF
    tensor = layout.tensor_ranks()
    keys = 2 * model.kv_heads * model.head_dim * rows * layout.cp * _HALF / layout.tp
    sent = 0.0
    if model.experts is not None:
        sent = rows * model.experts.top_k / layout.tp * (model.experts.latent or wide) * _HALF
    shards, replicas, own = layout.shard_ranks(), layout.replica_ranks(), held(model, layout)
    layers = max(1, model.layers)
    counts = model.counts()
    outer = (counts["embedding"] + counts["head"]) / layout.tp
    # Between the first and the last shard of the experts of rank 0 are those of the other experts.
    spread = layout.expert_shard_ranks()
    gather = scatter = outside = gradients = parameters = 0.0
    if layout.zero == 3:
        one = (own.common * layout.pp - outer) / layers
        gather = seconds("all_gather", one * _HALF, shards)
        scatter = seconds("reduce_scatter", one * gradient_bytes * trained, shards)
        outside = seconds("all_gather", outer * _HALF, shards)
        each = own.experts * layout.pp / layers
        gather += seconds("all_gather", each * _HALF, spread)
        scatter += seconds("reduce_scatter", each * gradient_bytes * trained, spread)
    else:
        reduce = "all_reduce" if layout.zero == 0 else "reduce_scatter"
        for size, ranks in ((own.common, shards), (own.experts, spread)):
            gradients += seconds(reduce, size * gradient_bytes * trained, ranks)
            if layout.zero > 0:
                parameters += seconds("all_gather", size * _HALF * trained, ranks)
    sharded = own.common / (len(shards) if layout.zero else 1)
    return Traffic(
        seconds("all_gather", activations, tensor) + seconds("reduce_scatter", activations, tensor),
        seconds("all_gather", keys, layout.context_ranks()),
        seconds("all_to_all", sent, layout.expert_ranks()),
        seconds("send", activations / layout.tp, layout.stage_ranks()) if layout.pp > 1 else 0.0,
        gather,
        scatter,
        outside,
        gradients,
        parameters,
        seconds("all_reduce", sharded * gradient_bytes * trained, replicas),
    )
