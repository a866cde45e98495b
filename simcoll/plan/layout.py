"""Parallel layouts: how a model, its batch and its state are divided over the ranks of a job.

Ranks are numbered as Megatron-LM and torchtitan number them: tensor parallel ranks are next to each other, then
context, data (shards before replicas) and pipeline ranks. Experts are spread over neighbours among the first three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.core.units import counted
from simcoll.errors import SimcollError
from simcoll.plan.model import Model

DTYPES = ("bf16", "fp8", "fp8-rowwise", "mxfp8", "nvfp4")
RECOMPUTE = ("none", "selective", "full")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
DIVIDES_RANKS = ("dp_replicate", "dp_shard", "tp", "cp", "pp")
"""The sizes whose product is the number of ranks."""

_LARGEST = 1 << 40


class LayoutError(SimcollError, ValueError):
    """A layout that does not divide the model, the batch or the cluster: what was given, what was expected."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a job over its GPUs.

    ``zero`` is the stage of ZeRO (arXiv:1910.02054) within the ``dp_shard`` ranks: 0 replicates everything, 1 shards
    the optimizer's state, 2 gradients too, 3 parameters too (FSDP; with ``dp_replicate``, HSDP). ``micro_batch`` and
    ``global_batch`` count sequences of ``seq_len`` tokens. ``dtype`` is that of matrix products.
    """

    dp_shard: int = 1
    dp_replicate: int = 1
    tp: int = 1
    pp: int = 1
    virtual_stages: int = 1
    schedule: str = "1f1b"
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    seq_len: int = 4096
    dtype: str = "bf16"
    recompute: str = "none"
    zero: int = 3
    compile: bool = True

    @property
    def data_parallel(self) -> int:
        """Ranks that see different sequences, all with the same part of the model."""
        return self.dp_shard * self.dp_replicate

    @property
    def gpus(self) -> int:
        """All ranks."""
        return self.data_parallel * self.tp * self.cp * self.pp

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step on each rank."""
        return self.global_batch // (self.micro_batch * self.data_parallel)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one rank of a context parallel group."""
        return self.micro_batch * self.seq_len // self.cp

    @property
    def stage_size(self) -> int:
        """Ranks of a pipeline stage, which are next to each other."""
        return self.data_parallel * self.tp * self.cp

    def tensor_ranks(self, rank: int = 0) -> range:
        """The tensor parallel group of a rank."""
        first = rank - rank % self.tp
        return range(first, first + self.tp)

    def context_ranks(self, rank: int = 0) -> range:
        """The context parallel group of a rank."""
        return self._group(rank, self.tp, self.cp)

    def shard_ranks(self, rank: int = 0) -> range:
        """The ranks over which the state of a rank is sharded: data and context parallel ones."""
        return self._group(rank, self.tp, self.cp * self.dp_shard)

    def replica_ranks(self, rank: int = 0) -> range:
        """The ranks that hold the same shard as a rank."""
        return self._group(rank, self.tp * self.cp * self.dp_shard, self.dp_replicate)

    def expert_ranks(self, rank: int = 0) -> range:
        """The expert parallel group of a rank."""
        return self._group(rank, 1, self.ep)

    def expert_shard_ranks(self, rank: int = 0) -> range:
        """The ranks over which the experts of a rank are sharded or replicated."""
        return self._group(rank, self.ep, self.stage_size // self.ep)

    def pipeline_ranks(self, rank: int = 0) -> range:
        """The ranks in the place of a rank in each pipeline stage."""
        return self._group(rank, self.stage_size, self.pp)

    @staticmethod
    def _group(rank: int, stride: int, size: int) -> range:
        """``size`` ranks ``stride`` apart, among them a rank."""
        first = rank - rank // stride % size * stride
        return range(first, first + stride * size, stride)


@dataclass(frozen=True, slots=True)
class Training:
    """The rest of a job beside its layout: ``adapters`` where low-rank adapters alone are trained (LoRA,
    arXiv:2106.09685), ``overlaps_tensor`` where products and tensor parallel collectives run in pieces at a
    time.
    """

    adapters: bool = False
    overlaps_tensor: bool = False


PLAIN = Training()
"""All parameters are trained."""

ADAPTERS = 0.002
"""The share of parameters that adapters of rank 16 add to a model."""


def check_layout(layout: Layout, model: Model, gpus: int) -> None:
    """Raises LayoutError, one line, where a layout does not divide a model or does not fill a cluster of ``gpus``."""
    sizes = (
        "dp_shard",
        "dp_replicate",
        "tp",
        "pp",
        "virtual_stages",
        "cp",
        "ep",
        "micro_batch",
        "global_batch",
        "seq_len",
    )
    for name in sizes:
        value = getattr(layout, name)
        if type(value) is not int or not 0 < value <= _LARGEST:
            limit = f"from 1 to {_LARGEST:,}" if type(value) is int and value > 0 else "of at least 1"
            raise LayoutError(f"{_option(name)} {value!r:.40}: expected a whole number {limit}")
    for name, known in (("dtype", DTYPES), ("recompute", RECOMPUTE), ("schedule", SCHEDULES)):
        if getattr(layout, name) not in known:
            raise LayoutError(f"{_option(name)} {getattr(layout, name)!r:.40}: expected {', '.join(known)}")
    if layout.zero not in (0, 1, 2, 3):
        raise LayoutError(f"--zero {layout.zero!r:.40}: expected 0, 1, 2 or 3")
    if layout.gpus != gpus:
        sizes_given = {name: getattr(layout, name) for name in DIVIDES_RANKS}
        raise LayoutError(f"{made_ranks(sizes_given)}: expected the {gpus:,} GPUs of the cluster")
    experts = 0 if model.experts is None else model.experts.count
    if layout.ep > 1 and not experts:
        raise LayoutError(f"--ep {layout.ep}: expected 1, because {model.name} has no experts")
    divides = [
        (
            layout.global_batch,
            layout.micro_batch * layout.data_parallel,
            "--global-batch",
            "--micro-batch x data ranks",
        ),
        (layout.seq_len, layout.cp * layout.tp, "--seq-len", "--cp x --tp"),
        (model.heads, layout.tp, f"{model.name}'s heads", "--tp"),
        (model.hidden, layout.tp, f"{model.name}'s width", "--tp"),
        (layout.tp * layout.cp * layout.data_parallel, layout.ep, "tensor x context x data parallel ranks", "--ep"),
    ]
    for whole, part, what, by in divides:
        if whole % part:
            raise LayoutError(f"{what} is {whole:,}, not a multiple of {by}, {part:,}")
    if experts % layout.ep:
        raise LayoutError(f"--ep {layout.ep}: expected a divisor of the {experts:,} experts of {model.name}")
    # Embedding and head may take the places of layers.
    if layout.pp * layout.virtual_stages > model.layers + 2:
        raise LayoutError(
            f"--pp {layout.pp} x --virtual-stages {layout.virtual_stages}: expected at most the {model.layers} layers "
            f"of {model.name}, and 2 for embedding and head"
        )
    if layout.virtual_stages > 1 and layout.pp == 1:
        raise LayoutError(f"--virtual-stages {layout.virtual_stages}: expected 1 without a pipeline (--pp 1)")


def made_ranks(sizes: Mapping[str, int]) -> str:
    """``--tp 4 x --pp 2 make 8 ranks``, or ``--tp 4``, of the sizes that are no 1; of all where none is."""
    told = {name: size for name, size in sizes.items() if size != 1} or sizes
    product = " x ".join(f"{_option(name)} {size:,}" for name, size in told.items())
    return product if len(told) == 1 else f"{product} make {counted(math.prod(told.values()), 'rank')}"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
