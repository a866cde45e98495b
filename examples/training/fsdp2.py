"""Fully sharded data parallel (FSDP2): each block is gathered when it runs, and its gradients are scattered.

Run: torchrun --standalone --nproc-per-node 4 examples/training/fsdp2.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCABULARY, WIDTH, LENGTH, BATCH = 96, 48, 16, 4


class Block(nn.Module):
    """Causal attention and a multilayer perceptron, with a residual connection around each."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def make_model(device: torch.device, layers: int = 2) -> nn.Sequential:
    """The model, sharded over all ranks: its blocks one by one, and what is left as one more unit."""
    torch.manual_seed(0)
    blocks = [Block() for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Flatten(0, 1), nn.Linear(WIDTH, VOCABULARY))
    model.to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def make_batch(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that count upwards from a number of this rank's own, and what follows each of their tokens."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    tokens = ((first + torch.arange(LENGTH + 1)) % VOCABULARY).to(device)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, step: int, device: torch.device) -> torch.Tensor:
    inputs, targets = make_batch(step, device)
    return nn.functional.cross_entropy(model(inputs), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--save", help="file for the weights")
    options = parser.parse_args()

    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    model = make_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, device)
        loss.backward()
        # The norm of all ranks' gradients is a sharded tensor: every rank asks for its value, though one prints it.
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0).full_tensor()
        optimizer.step()
        dist.all_reduce(loss.detach())
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item() / dist.get_world_size():.4f}, gradient norm {norm.item():.3f}")
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if options.save and dist.get_rank() == 0:
        torch.save(weights, options.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
