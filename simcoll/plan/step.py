"""The time of a training step: compute, the communication that compute does not hide, the pipeline's bubble.

Collectives within a layer (tensor, context, expert parallel) stand in a stage's own time, with the share of them that
frameworks leave exposed. Gathers and scatters of sharded parameters (ZeRO 3) run beside the layers: a pass takes as
long as the longer of both, compute that shares the GPU with them is slower, and each gather waits for the slowest rank.
The gradients' reduction of ZeRO 0 to 2 runs beside the last micro-batch's backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.plan.layout import ADAPTERS, PLAIN, Layout, Training
from simcoll.plan.model import Model
from simcoll.plan.rates import Rates, Seconds
from simcoll.plan.traffic import Traffic, held
from simcoll.plan.work import Work
from simcoll.pricing.waits import slowed_beside, wait_of_slowest

_LAST_STAGE = 0.3
"""The share of the head's time that other stages wait for: frameworks give the last stage fewer layers."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of each part of a step, on the rank that takes longest; ``compute`` by class of kernels."""

    kernels: Seconds
    head: float
    tensor: float
    context: float
    expert: float
    data: float
    stages: float
    bubble: float
    optimizer: float
    stragglers: float
    fixed: float

    @property
    def compute(self) -> float:
        """The work that the GPU computes."""
        return self.kernels.total + self.head + self.optimizer

    @property
    def exposed(self) -> float:
        """Communication that nothing hides."""
        return self.tensor + self.context + self.expert + self.data + self.stages

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.compute + self.exposed + self.bubble + self.stragglers + self.fixed

    def terms(self) -> Mapping[str, float]:
        """The parts by name; they add up to the step."""
        return {
            "matrix products": self.kernels.matmul,
            "attention": self.kernels.attention,
            "experts": self.kernels.experts,
            "memory traffic": self.kernels.memory,
            "launches": self.kernels.launches,
            "output head and loss": self.head,
            "optimizer": self.optimizer,
            "tensor parallel": self.tensor,
            "context parallel": self.context,
            "expert parallel": self.expert,
            "data parallel": self.data,
            "pipeline messages": self.stages,
            "pipeline bubble": self.bubble,
            "stragglers": self.stragglers,
            "fixed": self.fixed,
        }


def step_time(
    model: Model, layout: Layout, work: Work, traffic: Traffic, rates: Rates, training: Training = PLAIN
) -> StepTime:
    """The time of a step; raises nothing of its own."""
    count, stages = layout.micro_batches, layout.pp
    forward = rates.forward(work).times(1 / stages)
    backward = (rates.frozen_backward(work) if training.adapters else rates.backward(work)).times(1 / stages)
    again = _recomputed(layout, rates, forward)
    backward = backward.plus(again)
    head = rates.head(work)
    split = rates.share("tensor.in_pieces") if training.overlaps_tensor else 1.0
    tensor = traffic.tensor / count * rates.share("tensor.exposed") * split
    context = traffic.context / count * rates.share("overlapped.exposed")
    expert = traffic.expert / count * rates.share("expert.exposed")
    within = tensor + context + expert
    slot = forward.total + backward.total + within
    data = _data_parallel(layout, traffic, rates, (count * (forward.total + within / 2), count * slot))
    bubble = _bubble(layout, slot)
    if stages > 1:
        bubble += _LAST_STAGE * (1 - 1 / stages) * head * count
    own = held(model, layout)
    trained = ADAPTERS if training.adapters else 1.0
    shards = len(layout.shard_ranks()) if layout.zero else 1
    mine = own.common / shards + own.experts / max(1.0, shards / layout.ep)
    return StepTime(
        forward.plus(backward).times(count),
        head * count / stages,
        tensor * count,
        context * count,
        expert * count,
        data,
        2 * traffic.stage * (stages - 1),
        bubble,
        rates.optimizer(mine * trained),
        _stragglers(layout, rates) * count * slot,
        rates.of_framework("fixed"),
    )


def _stragglers(layout: Layout, rates: Rates) -> float:
    """The share of a pass that ranks wait for the slowest one, where each layer's parameters are gathered from all."""
    if layout.zero < 2:
        return 0.0
    return wait_of_slowest(rates.share("stragglers"), len(layout.shard_ranks()) * layout.dp_replicate)


def _recomputed(layout: Layout, rates: Rates, forward: Seconds) -> Seconds:
    """The work that the backward pass computes again."""
    if layout.recompute == "full":
        return forward
    if layout.recompute == "selective":
        if rates.recomputes_half:
            return forward.times(0.5)
        return Seconds(0.0, forward.attention, 0.0, 0.0, 0.0)
    return forward.times(0.0)


def _data_parallel(layout: Layout, traffic: Traffic, rates: Rates, passes: tuple[float, float]) -> float:
    """Seconds that data parallel communication adds to a step, whose forward, and forward and backward passes take."""
    behind = traffic.gradients + traffic.parameters + traffic.replicas
    forward, both = passes
    added = traffic.outer + behind * rates.share("overlapped.exposed")
    backward = traffic.gather_backward + traffic.scatter
    for compute, beside in ((forward, traffic.gather_forward), (both - forward, backward)):
        added += max(slowed_beside(rates.share("contention"), compute, beside), beside) - compute
    return added


def _bubble(layout: Layout, slot: float) -> float:
    """Seconds in which a stage has nothing to do: ``slot`` is a micro-batch's forward and backward pass on one stage.

    Of 1F1B and GPipe (p - 1) slots; interleaved ones are shorter by the virtual stages (Narayanan et al.,
    arXiv:2104.04473). Zero-bubble schedules fill two thirds of it with weight gradients (ZB-H1, arXiv:2401.10241).
    """
    waits = (layout.pp - 1) * slot
    if layout.schedule == "zero-bubble":
        return waits / 3
    return waits / layout.virtual_stages
