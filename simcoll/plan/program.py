"""The collectives and messages of one rank in a training step, of which the step's time is made.

Ranks of one pipeline stage are of a kind: they make the same calls in groups of their own. Sizes are those of torch
2.13: FSDP2 (torch/distributed/fsdp/_fully_shard) gathers each unit before its forward and its backward pass, and adds
up its gradients behind it; DDP's reducer fills buckets from the last parameter to the first; tensor parallel plans of
torch.distributed.tensor.parallel have two pairs of collectives a layer in each pass. Megatron-LM's distributed
optimizer reduces all gradients and gathers all parameters once a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from simcoll.plan.layout import ADAPTERS, PLAIN, Layout, LayoutError, Training
from simcoll.plan.model import Model
from simcoll.plan.parameters import Layer, Parameter, first_of, last_of, layers_of, padded

_WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
_BUCKETS = 1 << 20, 25 << 20
"""Bytes at which DDP closes its first bucket, and each other one."""


@dataclass(frozen=True, slots=True)
class Conventions:
    """The differences between training programs in what they send.

    ``parameters``, ``gradients`` and ``activations``: the dtypes in which they are sent.
    ``one_root``: FSDP's unit outside the layers is the embedding with the head; else each is a unit.
    ``keeps_gathered``: a pipeline stage gathers its parameters once a step; else for each run of passes of a kind.
    ``sequence_parallel``: between layers a tensor parallel rank has its part of the sequence.
    ``splits_logits``: a tensor parallel rank computes the loss on its part of the vocabulary.
    ``clips``: the norm of the gradients is computed. ``reports_loss``: the loss is summed over data parallel ranks.
    ``of_torch``: gradients of ZeRO 0 are reduced in DDP's buckets, and ZeRO 2 is FSDP that keeps parameters gathered;
    else all gradients are reduced at once, as Megatron-LM does.
    """

    parameters: str = "bfloat16"
    gradients: str = "float32"
    activations: str = "bfloat16"
    one_root: bool = False
    keeps_gathered: bool = True
    sequence_parallel: bool = True
    splits_logits: bool = True
    clips: bool = True
    reports_loss: bool = False
    of_torch: bool = True


def conventions_of(framework: str) -> Conventions:
    """Those of one of the frameworks of `simcoll.plan.rates`."""
    if framework == "torchtitan":
        return Conventions()
    if framework == "llm-foundry":
        return Conventions(gradients="bfloat16", one_root=True)
    return Conventions(gradients="bfloat16", of_torch=False)


@dataclass(frozen=True, slots=True)
class Collective:
    """``count`` equal calls in a step.

    ``op`` is a row of `simcoll.spec.collectives`, ``group`` the kind of group and ``ranks`` its members. ``bytes`` is
    the larger of a call's two sides. ``part`` is what it is for: a term of the step's time, or ``small`` for what takes
    a launch and no bandwidth. A message has its two ends for ranks, the sender first.
    """

    part: str
    op: str
    group: str
    ranks: range
    bytes: int
    dtype: str
    count: float

    def document(self) -> Mapping[str, object]:
        """The calls as JSON has them; ranks by the first, the distance between two, and their number."""
        ranks = {"first": self.ranks.start, "stride": self.ranks.step, "count": len(self.ranks)}
        return {**{name: getattr(self, name) for name in self.__slots__}, "ranks": ranks}


@dataclass(frozen=True, slots=True)
class Share:
    """The numbers of layers of each kind in a pipeline stage, and its shares of the embedding and of the head."""

    layers: tuple[tuple[Layer, float], ...]
    first: float
    last: float


def share_of(model: Model, layout: Layout, stage: int) -> Share:
    """The contents of a stage: layers are cut as evenly as whole ones can be, virtual stages in turn."""
    chunks, total = layout.pp * layout.virtual_stages, model.layers
    spans = [(one * total // chunks, (one + 1) * total // chunks) for one in range(stage, chunks, layout.pp)]
    found, begin = [], 0
    for layer in layers_of(model):
        end = begin + layer.count
        mine = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in spans)
        found.append((layer, float(mine)))
        begin = end
    return Share(tuple(found), float(stage == 0), float(stage == layout.pp - 1))


def mean_share(model: Model, layout: Layout) -> Share:
    """The contents of a stage on average."""
    part = 1 / layout.pp
    return Share(tuple((layer, layer.count * part) for layer in layers_of(model)), part, part)


def program_of(
    model: Model, layout: Layout, conventions: Conventions, rank: int = 0, training: Training = PLAIN
) -> list[Collective]:
    """The collectives of a step of one rank. Equal calls are one entry; the order is not that of the calls.

    Raises LayoutError for a rank that the layout has not.
    """
    if not 0 <= rank < layout.gpus:
        raise LayoutError(f"rank {rank}: expected 0 to {layout.gpus - 1:,}, the ranks of the layout")
    share = share_of(model, layout, rank // layout.stage_size)
    found = _Programmer(model, layout, conventions, training, share, rank).all()
    merged: dict[Collective, float] = {}
    for one in found:
        key = replace(one, count=0.0)
        merged[key] = merged.get(key, 0.0) + one.count
    return [replace(one, count=round(count)) for one, count in merged.items() if round(count)]


def mean_program(
    model: Model, layout: Layout, conventions: Conventions, training: Training = PLAIN
) -> list[Collective]:
    """The collectives of a step, on average over the stages, in the groups of rank 0: what the closed form prices."""
    return list(_Programmer(model, layout, conventions, training, mean_share(model, layout), 0).all())


class _Programmer:
    def __init__(
        self, model: Model, layout: Layout, conventions: Conventions, training: Training, share: Share, rank: int
    ) -> None:
        self._model, self._layout, self._how, self._share, self._rank = model, layout, conventions, share, rank
        self._trained = ADAPTERS if training.adapters else 1.0
        self._stage = rank // layout.stage_size
        # Around attention and around the feed-forward; a single block of a hybrid counts as a layer.
        self._blocks = 2 * sum(count for _, count in share.layers)
        self._sent, self._reduced = _WIDTHS[conventions.parameters], _WIDTHS[conventions.gradients]
        self._whole = layout.tokens * model.hidden * _WIDTHS[conventions.activations]

    def all(self) -> Iterator[Collective]:
        """Every collective of a step."""
        for one in (self._tensor(), self._context(), self._expert(), self._messages(), self._state(), self._small()):
            yield from one

    def _calls(
        self, part: str, op: str, group: str, ranks: range, size: float, dtype: str, count: float
    ) -> Iterator[Collective]:
        if len(ranks) > 1 and round(size) >= 1 and count > 0:
            yield Collective(part, op, group, ranks, round(size), dtype, count)

    def _tensor(self) -> Iterator[Collective]:
        layout, share, dtype = self._layout, self._share, self._how.activations
        ranks, times = layout.tensor_ranks(self._rank), layout.micro_batches
        again = layout.recompute == "full"
        entered = left = 2 * self._blocks
        if again:
            # What the last product of a layer adds up is not needed again: torch stops recomputing before it.
            entered += self._blocks
            left += self._blocks / (2 if self._how.of_torch else 1)
        # The embedding's lookup is added up, and what enters the head is gathered; backward the other way round.
        entered, left = entered + share.first + share.last, left + share.first + share.last
        if self._how.sequence_parallel:
            yield from self._calls("tensor", "all_gather", "tensor", ranks, self._whole, dtype, times * entered)
            yield from self._calls("tensor", "reduce_scatter", "tensor", ranks, self._whole, dtype, times * left)
        else:
            yield from self._calls("tensor", "all_reduce", "tensor", ranks, self._whole, dtype, times * left)
        if self._how.splits_logits:
            rows = 4 * layout.tokens
            yield from self._calls("small", "all_reduce", "tensor", ranks, rows, "float32", 3 * times * share.last)
        else:
            logits = layout.tokens * self._model.vocabulary * _WIDTHS[dtype]
            yield from self._calls("tensor", "all_gather", "tensor", ranks, logits, dtype, times * share.last)

    def _context(self) -> Iterator[Collective]:
        """Keys and values are gathered for each pass; torch hands their gradients from rank to rank, in 32 bits.

        What else hands keys and values on (rings of messages) sends as much as gathers of them do.
        """
        model, layout, dtype = self._model, self._layout, self._how.activations
        own = 2 * model.kv_heads * model.head_dim * layout.tokens / layout.tp
        blocks = sum(count for layer, count in self._share.layers) * model.attention / max(1, model.layers)
        ranks, times = layout.context_ranks(self._rank), blocks * layout.micro_batches
        gathers = 2 + (layout.recompute == "full") if self._how.of_torch else 3
        whole = own * layout.cp * _WIDTHS[dtype]
        yield from self._calls("context", "all_gather", "context", ranks, whole, dtype, gathers * times)
        if self._how.of_torch:
            yield from self._calls("context", "all_to_all", "context", ranks, own * 4, "float32", layout.cp * times)

    def _expert(self) -> Iterator[Collective]:
        model, layout, one = self._model, self._layout, self._model.experts
        if one is None:
            return
        rows = layout.tokens * one.top_k / layout.tp * (one.latent or model.hidden)
        ranks, dtype, times = layout.expert_ranks(self._rank), self._how.activations, layout.micro_batches
        mixtures = sum(count for layer, count in self._share.layers if layer.experts)
        size = rows * _WIDTHS[dtype]
        # Tokens are sent to their experts and back, forward and backward; before them how many there are.
        yield from self._calls("expert", "all_to_all", "expert", ranks, size, dtype, 4 * mixtures * times)
        forward = 1 + (layout.recompute == "full")
        yield from self._calls(
            "small", "all_to_all", "expert", ranks, 8 * one.count, "int64", forward * mixtures * times
        )

    def _messages(self) -> Iterator[Collective]:
        layout, dtype = self._layout, self._how.activations
        if layout.pp == 1:
            return
        split = layout.tp if self._how.sequence_parallel else 1
        size, stage, times = self._whole / split, self._stage, layout.micro_batches
        along = layout.pipeline_ranks(self._rank)
        # From one stage to the next, and from the last one back to the first where it has another chunk.
        into = layout.virtual_stages - (stage == layout.pp - 1)
        out_of = layout.virtual_stages - (stage == 0)
        for other, chunks in ((along[(stage + 1) % layout.pp], into), (along[(stage - 1) % layout.pp], out_of)):
            pair = range(self._rank, other + (1 if other > self._rank else -1), other - self._rank)
            back = range(other, self._rank + (1 if self._rank > other else -1), self._rank - other)
            yield from self._calls("stage", "send", "pipeline", pair, size, dtype, times * chunks)
            yield from self._calls("stage", "recv", "pipeline", back, size, dtype, times * chunks)

    def _state(self) -> Iterator[Collective]:
        if self._layout.zero == 3 or (self._layout.zero == 2 and self._how.of_torch):
            yield from self._sharded()
        elif self._layout.zero == 0 and self._how.of_torch:
            yield from self._bucketed()
        else:
            yield from self._at_once()

    def _sharded(self) -> Iterator[Collective]:
        """FSDP: each unit is gathered for its passes, and its gradients are added up."""
        layout, share = self._layout, self._share
        shards, spread = layout.shard_ranks(self._rank), layout.expert_shard_ranks(self._rank)
        for layer, count in share.layers:
            apart = layer.experts and (layout.ep > 1 or layout.tp > 1)
            own = layer.tensors if apart else (*layer.tensors, *layer.experts)
            yield from self._unit("", own, shards, count, "shard")
            if apart:
                yield from self._unit("", layer.experts, spread, count, "expert shard", experts=True)
        first, last = first_of(self._model), last_of(self._model)
        if self._how.one_root and share.first == share.last:
            yield from self._unit("outer", (*first, *last), shards, share.first, "shard")
            return
        yield from self._unit("outer" if self._how.one_root else "", first, shards, share.first, "shard")
        yield from self._unit("outer", last, shards, share.last, "shard")

    def _unit(
        self, part: str, tensors: Sequence[Parameter], ranks: range, count: float, group: str, *, experts: bool = False
    ) -> Iterator[Collective]:
        layout, how = self._layout, self._how
        if experts:
            elements = sum(_padded_experts(one.shape, layout.ep, len(ranks)) for one in tensors)
        else:
            elements = sum(padded(one.local(layout.tp), len(ranks)) for one in tensors)
        forward, backward, reduced = self._passes(stays=part == "outer" or layout.zero == 2)
        sent, added = elements * self._sent, elements * self._reduced * self._trained
        for place, times in (("gather.forward", forward), ("gather.backward", backward)):
            yield from self._calls(part or place, "all_gather", group, ranks, sent, how.parameters, times * count)
        scatter = "small" if part == "outer" else "scatter"
        yield from self._calls(scatter, "reduce_scatter", group, ranks, added, how.gradients, reduced * count)
        if not experts:
            copies = layout.replica_ranks(self._rank)
            size = added / len(ranks)
            yield from self._calls("replicas", "all_reduce", "replicate", copies, size, how.gradients, reduced * count)

    def _passes(self, *, stays: bool) -> tuple[int, int, int]:
        """The numbers of gathers of a unit, forward and backward, and of sums of its gradients; ``stays``: it is kept.

        In a pipeline torch adds up gradients behind the last backward pass, and keeps what one has gathered till then.
        """
        times = self._layout.micro_batches
        if self._layout.pp == 1:
            return times, 0 if stays else times, times
        if stays or self._how.keeps_gathered:
            return 1, 0, 1
        forward = backward = 0
        gathered, left = False, times
        for action in actions(self._layout, self._stage):
            forward += not gathered and action == "F"
            backward += not gathered and action == "B"
            left -= action == "B"
            gathered = action == "B" and left > 0
        return forward, backward, 1

    def _bucketed(self) -> Iterator[Collective]:
        """DDP: gradients in the order in which they come, the last layer's first, in buckets."""
        share, first, last = self._share, first_of(self._model), last_of(self._model)
        tensors = [*first] * round(share.first)
        for layer, count in share.layers:
            tensors += (*layer.tensors, *layer.experts) * math.ceil(count)
        tensors += [*last] * round(share.last)
        size, limit = 0.0, _BUCKETS[0]
        ranks = self._data_ranks()
        sizes = [math.prod(one.local(self._layout.tp)) * self._reduced * self._trained for one in reversed(tensors)]
        for one in sizes:
            size += one
            if size >= limit:
                yield from self._calls("gradients", "all_reduce", "data", ranks, size, self._how.gradients, 1)
                size, limit = 0.0, _BUCKETS[1]
        yield from self._calls("gradients", "all_reduce", "data", ranks, size, self._how.gradients, 1)

    def _data_ranks(self) -> range:
        layout, first = self._layout, self._layout.shard_ranks(self._rank)
        size = len(first) * layout.dp_replicate
        start = first[0] - first[0] % layout.stage_size + first[0] % layout.tp
        return range(start, start + size * layout.tp, layout.tp)

    def _at_once(self) -> Iterator[Collective]:
        """All gradients at once, and with a sharded optimizer all parameters."""
        layout, how, share = self._layout, self._how, self._share
        shards, spread = layout.shard_ranks(self._rank), layout.expert_shard_ranks(self._rank)
        own = [(first_of(self._model), share.first), (last_of(self._model), share.last)]
        own += [(layer.tensors, count) for layer, count in share.layers]
        routed = [(layer.experts, count) for layer, count in share.layers]
        common, experts = (
            sum(count * one.elements for tensors, count in held for one in tensors) / ranks
            for held, ranks in ((own, layout.tp), (routed, layout.ep))
        )
        reduce = "all_reduce" if layout.zero == 0 else "reduce_scatter"
        for size, ranks, group in ((common, shards, "shard"), (experts, spread, "expert shard")):
            reduced = size * self._trained
            yield from self._calls("gradients", reduce, group, ranks, reduced * self._reduced, how.gradients, 1)
            if layout.zero > 0:
                sent = reduced * self._sent
                yield from self._calls("parameters", "all_gather", group, ranks, sent, how.parameters, 1)
        size = common * self._reduced * self._trained / (len(shards) if layout.zero else 1)
        copies = layout.replica_ranks(self._rank)
        yield from self._calls("replicas", "all_reduce", "replicate", copies, size, how.gradients, 1)

    def _small(self) -> Iterator[Collective]:
        """The other calls: gradients of norms that see a part of the sequence, the norm of gradients, the loss."""
        layout, how, share = self._layout, self._how, self._share
        rank = self._rank
        if how.sequence_parallel:
            for one, count in self._tensors():
                if one.split is None and len(one.shape) == 1:
                    size, tensor = one.shape[0] * self._sent, layout.tensor_ranks(rank)
                    reduced = layout.micro_batches if layout.pp == 1 else 1
                    yield from self._calls(
                        "small", "all_reduce", "tensor", tensor, size, how.parameters, count * reduced
                    )
        if how.clips:
            norms = 4 * sum(count for _, count in self._tensors())
            if layout.zero >= 2:
                yield from self._calls("small", "all_reduce", "shard", layout.shard_ranks(rank), norms, "float32", 1)
            yield from self._calls("small", "all_reduce", "tensor", layout.tensor_ranks(rank), norms, "float32", 1)
            yield from self._calls("small", "all_reduce", "pipeline", layout.pipeline_ranks(rank), 4, "float32", 1)
        if how.reports_loss:
            yield from self._calls("small", "all_reduce", "data", self._data_ranks(), 4, "float32", share.last)

    def _tensors(self) -> Iterable[tuple[Parameter, float]]:
        """All tensors of a stage, and how many are alike."""
        yield from ((one, self._share.first) for one in first_of(self._model))
        for layer, count in self._share.layers:
            yield from ((one, count) for one in (*layer.tensors, *layer.experts))
        yield from ((one, self._share.last) for one in last_of(self._model))


def _padded_experts(shape: tuple[int, ...], ep: int, ranks: int) -> int:
    """Elements of a tensor of all experts: a rank's are sharded by expert, by rows where there are fewer experts."""
    mine = (shape[0] // ep, *shape[1:])
    if mine[0] >= ranks or len(mine) == 1:
        return padded(mine, ranks)
    return mine[0] * padded(mine[1:], ranks)


def actions(layout: Layout, stage: int) -> str:
    """The passes of a stage in order, forward and backward."""
    times = layout.micro_batches
    warm = times if layout.schedule == "gpipe" else min(times, layout.pp - stage)
    steady = times - warm
    return "F" * warm + "BF" * steady + "B" * warm
