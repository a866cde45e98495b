"""Models as data: the shape of a decoder-only transformer, and how many parameters it has, part by part.

A model is a list of blocks: attention, dense feed-forward, mixture of experts, state space (Mamba-2). A usual
transformer of L layers has L attention blocks and L feed-forward blocks, each with a norm before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcoll.plan.parameters import blocks_of


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-latent attention (DeepSeek-V2, arXiv:2405.04434): queries and keys come from low-rank latents.

    ``query_rank`` and ``kv_rank`` are the latents' widths, ``nope`` and ``rope`` those of a head's part without and
    with positions, ``value`` that of a head's value. With a ``kv_rank`` of 0 all heads share one key, which is their
    value too. With an ``output_rank`` the values of each of ``output_groups`` groups of heads pass through a latent of
    that width on the way back (DeepSeek-V4 has both).
    """

    query_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    output_rank: int = 0
    output_groups: int = 1


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: ``count`` of them, ``top_k`` for each token, each of width ``hidden``.

    ``shared_hidden`` is the width of what all tokens pass through beside them (0: nothing), ``latent`` the width to
    which tokens are projected before they are sent to experts (0: they are sent as they are). ``bias`` says whether the
    router and the experts have biases, ``correction`` whether the router has one for each expert that balances them.
    """

    count: int
    top_k: int
    hidden: int
    shared_hidden: int = 0
    latent: int = 0
    bias: bool = False
    correction: bool = False


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A Mamba-2 block (arXiv:2405.21060): heads and their width, the size of a head's state, groups, convolution."""

    heads: int
    head_dim: int
    state: int
    groups: int
    convolution: int = 4

    @property
    def inner(self) -> int:
        """The width inside the block."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Model:
    """A model's shape; widths in elements.

    ``attention``, ``dense``, ``moe`` and ``mamba`` count its blocks. ``ffn`` is the width of a dense block's hidden
    layer, ``gated`` whether a feed-forward has a gate (three matrices in place of two). ``windowed`` of the attention
    blocks see the last ``window`` tokens alone. ``tied`` says that the output head is the embedding. ``positions`` is
    the number of learned positions (0: rotary or none), ``biases`` where linear layers have biases ("none", "qkv",
    "attention", "all"), ``layer_norm`` whether norms have biases, ``qk_norm`` whether heads' queries and keys are
    normalised, ``sinks`` whether each head has a learned sink. ``parameters`` is the published count (0: none),
    ``source`` where the figures are from.
    """

    name: str
    hidden: int
    vocabulary: int
    attention: int
    heads: int
    kv_heads: int
    head_dim: int
    dense: int = 0
    ffn: int = 0
    gated: bool = True
    moe: int = 0
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None
    mamba: int = 0
    state_space: StateSpace | None = None
    windowed: int = 0
    window: int = 0
    tied: bool = False
    positions: int = 0
    biases: str = "none"
    layer_norm: bool = False
    qk_norm: bool = False
    sinks: bool = False
    parameters: int = 0
    source: str = ""

    @property
    def layers(self) -> int:
        """Layers as pipelines cut them: pairs of attention and feed-forward, or single blocks where they alternate."""
        blocks = self.attention + self.dense + self.moe + self.mamba
        return blocks if self.mamba else self.attention

    @property
    def query_width(self) -> int:
        """The width of one head's query and key."""
        latent = self.latent_attention
        return self.head_dim if latent is None else latent.nope + latent.rope

    @property
    def value_width(self) -> int:
        """The width of one head's value."""
        return self.head_dim if self.latent_attention is None else self.latent_attention.value

    def counts(self) -> Mapping[str, int]:
        """Parameters of each part: embedding, positions, attention, dense, router, experts, shared, mamba, norms, head.

        ``experts`` are those of which a token uses some; ``shared`` what all tokens of a mixture pass through.
        """
        return {
            part: blocks * sum(tensor.elements for tensor in tensors)
            for part, (blocks, tensors) in blocks_of(self).items()
        }

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(self.counts().values())

    @property
    def active(self) -> int:
        """Parameters that one token uses: of the experts, its own."""
        counts = self.counts()
        used = 0 if self.experts is None else counts["experts"] * self.experts.top_k // self.experts.count
        return self.total - counts["experts"] + used
