# ranks=2
"""Forked DataLoader workers and a sampler, while collectives go on."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
data = TensorDataset(torch.arange(24.0))
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, multiprocessing_context="fork")
total = torch.zeros(())
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        summed = batch.sum()
        dist.all_reduce(summed)
        total += summed
assert total.item() == 2 * sum(range(24))
