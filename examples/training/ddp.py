"""Data parallel: DistributedDataParallel and a DistributedSampler; validation adds up its counts over all ranks.

Run: torchrun --standalone --nproc-per-node 4 examples/training/ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, CLASSES = 16, 4


def make_data(samples: int, seed: int) -> TensorDataset:
    """Points whose class a fixed linear map decides."""
    teacher = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(samples, FEATURES, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, (inputs @ teacher).argmax(dim=1))


def make_model(device: torch.device) -> DistributedDataParallel:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, CLASSES))
    return DistributedDataParallel(model.to(device))


def train_one_epoch(
    model: nn.Module, batches: DataLoader[tuple[torch.Tensor, ...]], optimizer: torch.optim.Optimizer
) -> None:
    device = next(model.parameters()).device
    model.train()
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()


@torch.no_grad()
def validate(model: DistributedDataParallel, dataset: TensorDataset) -> tuple[float, float]:
    """Loss and accuracy over the whole validation set, of which each rank sees a part."""
    device = next(model.parameters()).device
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inputs, labels = (tensor[rank::world_size].to(device) for tensor in dataset.tensors)
    model.eval()
    logits = model.module(inputs)
    loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
    sums = torch.stack([loss, (logits.argmax(dim=1) == labels).sum(), torch.tensor(len(labels), device=device)])
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def train(epochs: int, batch_size: int) -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    training, validation = make_data(500, seed=1), make_data(256, seed=2)
    # The sampler gives every rank as many samples: where they do not divide, it repeats some.
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(training)
    batches = DataLoader(training, batch_size, sampler=sampler)
    model = make_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        train_one_epoch(model, batches, optimizer)
        loss, accuracy = validate(model, validation)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="samples of one rank")
    options = parser.parse_args()

    dist.init_process_group()
    # The model ends with this call: one that outlives its group may hang the process.
    train(options.epochs, options.batch_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
