"""The cost of the collectives of a step (`simcoll.plan.program`) on a topology, each alone (`simcoll.estimator`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simcoll.plan.layout import PLAIN, Layout, Training
from simcoll.plan.model import Model
from simcoll.plan.network import Network
from simcoll.plan.program import Collective, conventions_of, mean_program
from simcoll.plan.rates import Framework


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of a step's collectives, one after the other, by what they are for; ``stage`` is one message alone.

    ``gather_forward``, ``gather_backward`` and ``scatter`` are the parameters and gradients of sharded layers,
    ``outer`` the gathers of what stands outside the layers. ``gradients`` and ``parameters`` are those of all that a
    rank holds, ``replicas`` what replicas of shards add up.
    """

    tensor: float
    context: float
    expert: float
    stage: float
    gather_forward: float
    gather_backward: float
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
    model: Model, layout: Layout, network: Network, framework: Framework, training: Training = PLAIN
) -> Traffic:
    """The collectives of a step; raises EstimateError and TopologyError where the topology cannot carry them."""
    return priced(mean_program(model, layout, conventions_of(framework.name), training), network)


def priced(program: Iterable[Collective], network: Network) -> Traffic:
    """The seconds of a program by part; what is small is not priced: launches have a part of their own."""
    found = dict.fromkeys(Traffic.__slots__, 0.0)
    for one in program:
        if one.part == "small" or one.op == "recv":
            continue
        name = one.part.replace(".", "_")
        seconds = network.seconds(one.op, one.bytes, one.ranks)
        found[name] = max(found[name], seconds) if name == "stage" else found[name] + one.count * seconds
    return Traffic(**found)
