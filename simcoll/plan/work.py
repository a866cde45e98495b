"""The work of one rank for one micro-batch, by class of kernel: FLOPs, and elements that memory moves.

A matrix product of m x k by k x n is 2 m k n FLOPs and moves m k + k n + m n elements. The backward pass of a product
is two of the same size; that of attention, which recomputes the scores, takes 2.5 times the forward pass's FLOPs (Dao,
FlashAttention-2, arXiv:2307.08691). Causal attention computes half of the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcoll.plan.layout import Layout
from simcoll.plan.model import Experts, Model, StateSpace


@dataclass(slots=True)
class Work:
    """The forward pass of all blocks over one micro-batch, on one tensor parallel rank.

    ``matmul`` and ``experts`` are FLOPs of products and those of routed experts, with the elements that they move;
    ``attention`` FLOPs of the scores and values; ``moved`` elements of what is bound by memory (norms, activations,
    rotary positions, residuals), ``permuted`` those that are brought to their experts' order, ``scanned`` those of
    state spaces. ``head`` is the output head with its loss: FLOPs, and logits.
    """

    tokens: int
    blocks: int
    moe_blocks: int
    matmul: float = 0.0
    matmul_moved: float = 0.0
    attention: float = 0.0
    experts: float = 0.0
    experts_moved: float = 0.0
    moved: float = 0.0
    permuted: float = 0.0
    scanned: float = 0.0
    head: float = 0.0
    logits: float = 0.0

    def product(self, times: int, inner: float, outer: float) -> None:
        """Add ``times`` products of the tokens' rows of width ``inner`` with a matrix to width ``outer``."""
        rows = self.tokens
        self.matmul += times * 2.0 * rows * inner * outer
        self.matmul_moved += times * (rows * inner + inner * outer + rows * outer)


def work_of(model: Model, layout: Layout) -> Work:
    """The work of all stages together; a pipeline stage does its share."""
    blocks = model.attention + model.dense + model.moe + model.mamba
    work = Work(layout.tokens, blocks, model.moe)
    _attention(work, model, layout)
    matrices, tp = 3 if model.gated else 2, layout.tp
    if model.dense:
        work.product(model.dense, model.hidden, (matrices - 1) * model.ffn / tp)
        work.product(model.dense, model.ffn / tp, model.hidden)
        work.moved += model.dense * work.tokens * (4 * model.hidden + matrices * model.ffn / tp)
    if model.experts is not None:
        _experts(work, model, model.experts, layout)
    if model.state_space is not None:
        _state_space(work, model, model.state_space, layout)
    work.head = 2.0 * work.tokens * model.hidden * model.vocabulary / tp
    work.logits = work.tokens * model.vocabulary / tp
    return work


def _attention(work: Work, model: Model, layout: Layout) -> None:
    blocks, wide, heads, tp = model.attention, model.hidden, model.heads, layout.tp
    latent = model.latent_attention
    if latent is None:
        work.product(blocks, wide, model.head_dim * (heads + 2 * model.kv_heads) / tp)
        work.product(blocks, heads * model.head_dim / tp, wide)
    else:
        work.product(blocks, wide, latent.query_rank)
        work.product(blocks, latent.query_rank, heads * model.query_width / tp)
        work.product(blocks, wide, latent.kv_rank + latent.rope)
        work.product(blocks, latent.kv_rank, heads * (latent.nope + latent.value) / tp)
        if latent.output_rank:
            work.product(blocks, heads * latent.value / tp, latent.output_rank)
            work.product(blocks, latent.output_groups * latent.output_rank / tp, wide)
        else:
            work.product(blocks, heads * latent.value / tp, wide)
    seen = layout.seq_len / 2
    scores = (blocks - model.windowed) * seen + model.windowed * min(seen, model.window)
    work.attention += 2.0 * work.tokens * heads / tp * (model.query_width + model.value_width) * scores
    work.moved += blocks * work.tokens * (6 * wide + 2 * heads * model.query_width / tp)


def _experts(work: Work, model: Model, experts: Experts, layout: Layout) -> None:
    blocks, wide, tp = model.moe, model.hidden, layout.tp
    matrices, inner = 3 if model.gated else 2, experts.latent or wide
    # Every rank of the expert parallel group gets as many tokens as it sends: routers are trained to balance.
    rows, here = work.tokens * experts.top_k / tp, experts.count / layout.ep
    for source, target in ((inner, (matrices - 1) * experts.hidden), (experts.hidden, inner)):
        work.experts += blocks * 2.0 * rows * source * target
        work.experts_moved += blocks * (rows * (source + target) + here * source * target)
    work.product(blocks, wide / tp, experts.count)
    if experts.shared_hidden:
        work.product(blocks, wide, (matrices - 1) * experts.shared_hidden / tp)
        work.product(blocks, experts.shared_hidden / tp, wide)
    if experts.latent:
        work.product(2 * blocks, wide / tp, experts.latent)
    work.permuted += blocks * rows * inner
    work.moved += blocks * (4 * work.tokens * wide + rows * experts.hidden * matrices)


def _state_space(work: Work, model: Model, block: StateSpace, layout: Layout) -> None:
    tp, mixed = layout.tp, block.inner + 2 * block.groups * block.state
    work.product(model.mamba, model.hidden, (block.inner + mixed + block.heads) / tp)
    work.product(model.mamba, block.inner / tp, model.hidden)
    work.moved += model.mamba * work.tokens * (4 * model.hidden + 12 * block.inner / tp)
    work.scanned += model.mamba * work.tokens * block.inner * block.state / tp


def flops_per_token(model: Model, seq_len: int) -> float:
    """FLOPs of a token in training, as model FLOPs utilisation counts them: forward and twice as much backward.

    Recomputation is not counted, and causal attention is half of the full one (Megatron-LM; PaLM, arXiv:2204.02311,
    counts the full one).
    """
    work = work_of(model, Layout(seq_len=seq_len))
    return 3.0 * (work.matmul + work.attention + work.experts + work.head) / work.tokens
