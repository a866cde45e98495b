"""A Llama-style model under FSDP2: 8 B parameters with ``--size 8b``, a small one by default.

Run: simcoll run --standalone --nproc-per-node 2 examples/llama_fsdp2.py
simcoll: clean

Without a cluster, its ranks and what they cost:

simcoll preflight --world-size 512 --fake-tensors --steps 3 examples/llama_fsdp2.py --size 8b
simcoll estimate examples/llama_fsdp2.py --world-size 512 --gpu h100 --nodes 64 --fake-tensors -- --size 8b
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

SIZES = {
    # layers, dim, heads, key and value heads, hidden, vocabulary
    "small": (2, 64, 4, 2, 128, 256),
    "8b": (32, 4096, 32, 8, 14336, 128256),
}


class Attention(nn.Module):
    """Grouped-query attention, causal."""

    def __init__(self, dim: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared, self.width = heads, shared, dim // heads
        self.wq = nn.Linear(dim, heads * self.width, bias=False)
        self.wk = nn.Linear(dim, shared * self.width, bias=False)
        self.wv = nn.Linear(dim, shared * self.width, bias=False)
        self.wo = nn.Linear(heads * self.width, dim, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """From [batch, length, dim] to the same."""
        batch, length, _ = x.shape
        query = rotated(self.wq(x).view(batch, length, self.heads, self.width), rotation).transpose(1, 2)
        key = rotated(self.wk(x).view(batch, length, self.shared, self.width), rotation).transpose(1, 2)
        value = self.wv(x).view(batch, length, self.shared, self.width).transpose(1, 2)
        times = self.heads // self.shared
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class Block(nn.Module):
    """Attention and a gated feed-forward network, each behind a norm and beside a residual."""

    def __init__(self, dim: int, heads: int, shared: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads, shared)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """From [batch, length, dim] to the same."""
        x = x + self.attention(self.attention_norm(x), rotation)
        y = self.feed_norm(x)
        result: Tensor = x + self.w2(functional.silu(self.w1(y)) * self.w3(y))
        return result


class Llama(nn.Module):
    """From tokens [batch, length] to logits [batch, length, vocabulary]."""

    def __init__(self, layers: int, dim: int, heads: int, shared: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.width = dim // heads
        self.embeddings = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Block(dim, heads, shared, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.output = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at each place."""
        x = self.embeddings(tokens)
        rotation = angles(tokens.shape[1], self.width, x.dtype, tokens.device)
        for layer in self.layers:
            x = layer(x, rotation)
        logits: Tensor = self.output(self.norm(x))
        return logits


def angles(length: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines and sines of the rotary embedding: [2, length, 1, width / 2]."""
    frequencies = 500_000.0 ** (-torch.arange(0, width, 2, device=device) / width)
    turns = torch.arange(length, device=device)[:, None] * frequencies
    return torch.stack([turns.cos(), turns.sin()])[:, :, None].to(dtype)


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Pairs of numbers, each turned by its place's angle."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = rotation
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def sharded(model: Llama) -> Llama:
    """Each block, and the rest with the root, in shards: computed in bfloat16, gradients added up in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--train-steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=32)
    options = parser.parse_args()
    layers, *rest = SIZES[options.size]
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    with torch.device("meta"):
        model = Llama(options.layers or layers, *rest)
    model = sharded(model)
    model.to_empty(device=device)
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(options.train_steps):
        tokens = torch.randint(rest[-1], (options.batch, options.length + 1), device=device)
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
