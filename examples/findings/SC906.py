"""Dropout between two tensor-parallel layers, with a seed of its own on every rank: each masks other activations.

Tensor parallelism gives all ranks the same activations between its layers, and each computes on them what the others
compute. With different masks the ranks add up parts of different networks. Nothing fails, and the loss falls slowly.

Run: simcoll run --values all --standalone --nproc-per-node 2 examples/findings/SC906.py
simcoll: SC906
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(1)
    # Bug: should be the same seed on all ranks that share the activations.
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        loss = model(torch.rand(4, 8, generator=data)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()}: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
