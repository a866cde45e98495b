# expect: SC202 culprits=48-63 ranks=64
# silent: ranks=2,4,8
"""FSDP2, with the gradients' norm computed by hand, by every rank that has any of them.

A parameter is sharded by its first dimension, which is 48 at most. Of 64 ranks the last ones hold nothing at all: they
leave out the all_reduce that the others wait in.
"""

import torch
import torch.distributed as dist
from fsdp2 import WIDTH, make_batch
from torch import nn
from torch.distributed.fsdp import fully_shard

STEPS = 2


def clip(model: nn.Module, most: float) -> None:
    """Scale the gradients down where the norm over all ranks is larger than ``most``."""
    shards = [parameter.grad.to_local() for parameter in model.parameters()]
    norms = [shard.square().sum() for shard in shards if shard.numel()]
    if not norms:
        return  # nothing to clip here
    total = torch.stack(norms).sum()
    dist.all_reduce(total)  # <- bug
    for shard in shards:
        shard.mul_((most / total.sqrt()).clamp(max=1.0))


def main() -> None:
    dist.init_process_group()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        inputs, targets = (tokens.flatten() % WIDTH for tokens in make_batch(step, torch.device("cpu")))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        clip(model, most=1.0)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
