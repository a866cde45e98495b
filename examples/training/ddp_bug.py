# expect: SC202 culprits=56-63 ranks=64
# silent: ranks=2,4,8
"""Data parallel, with the data sharded by hand: 1,016 samples do not divide over 64 ranks, as they do over 8.

There ranks 0 to 55 have 16 samples, four batches, and the others 15: three batches, for the rest is dropped.
"""

import torch
import torch.distributed as dist
from ddp import make_data, make_model, validate
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH_SIZE = 2, 4


def main() -> None:
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training, validation = make_data(1016, seed=1), make_data(256, seed=2)
    shard = TensorDataset(*training[rank::world_size])  # no sampler that would even it out
    batches = DataLoader(shard, BATCH_SIZE, shuffle=True, drop_last=True)
    model = make_model(torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(EPOCHS):
        model.train()
        for inputs, labels in batches:
            optimizer.zero_grad()
            logits = model(inputs)  # <- bug
            nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
        loss, accuracy = validate(model, validation)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
