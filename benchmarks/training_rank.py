"""One rank of the training benchmark: a transformer under DistributedDataParallel or FSDP2, its step timed.

Started by ``training.py``, which switches the checker under test on by the environment alone. Rank 0 prints one JSON
list: the median step in seconds, and the model's parameters.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, VOCABULARY, TOKENS = 768, 7, 8192, 16
WARM_UP = 3


class Transformer(nn.Module):
    """Predicts tokens; about 56 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=12, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, tokens, vocabulary)."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = hidden @ self.embedding.weight.T
        return logits


def wrapped(model: Transformer, wrapper: str) -> nn.Module:
    """The model as one of the two wrappers shares it out."""
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def timed_steps(model: nn.Module, steps: int, batch: int) -> list[float]:
    """Seconds of each step after a warm-up, with a sequence of so many tokens."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (1, batch), generator=torch.Generator().manual_seed(dist.get_rank()))
    seconds = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def main(wrapper: str, steps: int, batch: int) -> None:
    """Train and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = Transformer()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seconds = timed_steps(wrapped(model, wrapper), steps, batch)
    if dist.get_rank() == 0:
        median, mean = statistics.median(seconds), statistics.mean(seconds)
        row = {"seconds": median, "mean": mean, "parameters": parameters}
        print(json.dumps([row]), flush=True)
    dist.barrier()
    # What a checker leaves running must not keep the benchmark: its result is out.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else TOKENS)
