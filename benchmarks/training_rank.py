"""One rank of the training benchmark: a transformer under DistributedDataParallel or FSDP2, its step timed.

Started by ``training.py`` and ``values.py``, which switch the checker under test on by the environment alone. A rank
makes as many steps as each line of its input says, and answers with one line: what they took.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, VOCABULARY = 768, 7, 8192


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


def training_step(model: nn.Module, batch: int) -> Callable[[], None]:
    """Makes a step with a sequence of so many tokens."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (1, batch), generator=torch.Generator().manual_seed(dist.get_rank()))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()

    return step


def take_turns(step: Callable[[], None]) -> None:
    """Make the steps that each line of the input asks for, and answer with their time and the memory so far."""
    for line in sys.stdin:
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for _ in range(int(line)):
            step()
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps({"wall": wall, "cpu": cpu, "memory": after.ru_maxrss << 10}), flush=True)


def main(wrapper: str, batch: int) -> None:
    """Train when told to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    take_turns(training_step(wrapped(Transformer(), wrapper), batch))
    # What a checker leaves running must not keep the benchmark: its result is out.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
