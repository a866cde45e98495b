"""Tensor parallel: attention heads, the perceptron's columns and the vocabulary are split; the rest is data parallel.

Run: torchrun --standalone --nproc-per-node 4 examples/training/tensor_parallel.py --tp 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 260, 32, 8, 16, 4  # 256 bytes and 4 special tokens


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's heads: as many as fit in the columns it has."""
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(heads.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate()),
    **{f"blocks.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")},
    **{f"blocks.*.{name}": RowwiseParallel() for name in ("o", "down")},
    "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}


def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """What DDP does, over the ranks that hold the same part of the model."""
    for parameter in model.parameters():
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        dist.all_reduce(gradient, group=mesh.get_group())
        gradient /= mesh.size()


def make_batch(step: int, mesh: DeviceMesh) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that count upwards; ranks that share a model's parts have the same ones."""
    generator = torch.Generator().manual_seed(step * mesh.size() + mesh.get_local_rank())
    first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    tokens = ((first + torch.arange(LENGTH + 1)) % VOCABULARY).to(mesh.device_type)
    return tokens[:, :-1], tokens[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=2, help="ranks that share a model")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    shape = dist.get_world_size() // options.tp, options.tp
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = parallelize_module(Model(layers=2).to(device), mesh["tp"], PLAN)
    # Not foreach, which is the default on GPUs and refuses lists of DTensors and plain tensors.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in range(options.steps):
        inputs, targets = make_batch(step, mesh["dp"])
        optimizer.zero_grad()
        with loss_parallel():  # the logits stay split by the vocabulary
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
        average_gradients(model, mesh["dp"])
        optimizer.step()
        loss = loss.full_tensor()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
