"""Each rank reads the whole data set, in an order that the seed of the job draws: all train on the same batches.

Nothing fails, and the loss falls. Three ranks learn what one would have learned alone.

Run: simcoll run --values all --standalone --nproc-per-node 3 examples/findings/SC905.py
simcoll: SC905, a warning
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(17)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for samples, labels in loader():
        loss = (model(samples) - labels).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()}: {loss.item():.3f}")
    dist.destroy_process_group()


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    data = torch.rand(48, 8, generator=torch.Generator().manual_seed(1))
    # Bug: should be sampler=DistributedSampler(dataset) in place of shuffle=True.
    return DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=8, shuffle=True)


if __name__ == "__main__":
    main()
