"""A small Llama with 3-D parallelism: FSDP2 x pipeline x tensor (and sequence) parallel, on one DeviceMesh.

Run: torchrun --standalone --nproc-per-node 8 examples/training/llama_3d.py --pp 2 --tp 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY, WIDTH, HIDDEN, LAYERS = 64, 32, 96, 4
HEADS, KV_HEADS, LENGTH, BATCH, MICROBATCHES = 8, 4, 16, 8, 2


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of ``(batch, heads, length, head width)``."""
    length, half = x.shape[-2], x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.outer(torch.arange(length, device=x.device), frequencies)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)


class Attention(nn.Module):
    """Grouped-query attention; a rank has some of the heads, and the keys and values that these share."""

    def __init__(self) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.wq, self.wo = nn.Linear(WIDTH, HEADS * head, bias=False), nn.Linear(HEADS * head, WIDTH, bias=False)
        self.wk, self.wv = (nn.Linear(WIDTH, KV_HEADS * head, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv)
        )
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (rotate(k), v))
        heads = nn.functional.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        return self.wo(heads.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.ffn_norm, self.feed_forward = nn.RMSNorm(WIDTH), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


def make_part(stage: int, stages: int) -> nn.Sequential:
    """The modules of one stage; the first has the embedding, the last the output layer."""
    part = nn.Sequential()
    if stage == 0:
        part.add_module("embedding", nn.Embedding(VOCABULARY, WIDTH))
    for layer in range(stage * LAYERS // stages, (stage + 1) * LAYERS // stages):
        torch.manual_seed(layer)
        part.add_module(f"block{layer}", Block())
    if stage == stages - 1:
        part.add_module("norm", nn.RMSNorm(WIDTH))
        part.add_module("output", nn.Linear(WIDTH, VOCABULARY, bias=False))
    return part


PLAN = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
BLOCK_PLAN = {
    "attention_norm": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "ffn_norm": SequenceParallel(),
    "feed_forward": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
    **{f"feed_forward.{name}": ColwiseParallel() for name in ("w1", "w3")},
    "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
}


def make_stage(mesh: DeviceMesh, device: torch.device) -> PipelineStage:
    """This rank's stage: first split over ``tp``, then each block of it sharded over ``dp``."""
    place, stages = mesh["pp"].get_local_rank(), mesh["pp"].size()
    part = make_part(place, stages).to(device)
    parallelize_module(part, mesh["tp"], {name: how for name, how in PLAN.items() if hasattr(part, name)})
    for module in part.children():
        if isinstance(module, Block):
            parallelize_module(module, mesh["tp"], BLOCK_PLAN)
            fully_shard(module, mesh=mesh["dp"])
    fully_shard(part, mesh=mesh["dp"])
    return PipelineStage(part, place, stages, device, group=mesh["pp"].get_group())


def make_batch(step: int, mesh: DeviceMesh) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences that count upwards, others for each place in ``dp``, and what follows each of their tokens."""
    generator = torch.Generator().manual_seed(step * mesh["dp"].size() + mesh["dp"].get_local_rank())
    first = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    tokens = ((first + torch.arange(LENGTH + 1)) % VOCABULARY).to(mesh.device_type)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def run_step(schedule: Schedule1F1B, stage: PipelineStage, mesh: DeviceMesh, step: int) -> torch.Tensor:
    """All microbatches forward and backward; the mean loss where the last stage is, zero elsewhere."""
    inputs, targets = make_batch(step, mesh)
    losses: list[torch.Tensor] = []
    given = (inputs,) if stage.is_first else ()
    if stage.is_last:
        schedule.step(*given, target=targets, losses=losses)
    else:
        schedule.step(*given)
    return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=inputs.device)


def clip(module: nn.Module, mesh: DeviceMesh, most: float) -> torch.Tensor:
    """Scale the gradients by their norm over all three dimensions."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    squares = nn.utils.get_total_norm(gradients).full_tensor().square()  # of this stage, over dp and tp
    dist.all_reduce(squares, group=mesh["pp"].get_group())
    nn.utils.clip_grads_with_norm_(module.parameters(), most, squares.sqrt())
    return squares.sqrt()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pp", type=int, default=2, help="pipeline stages")
    parser.add_argument("--tp", type=int, default=2, help="ranks that share a stage's layers")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    shape = dist.get_world_size() // (options.pp * options.tp), options.pp, options.tp
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "pp", "tp"))
    stage = make_stage(mesh, device)
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-2)
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = run_step(schedule, stage, mesh, step)
        clip(stage.submod, mesh, most=1.0)
        optimizer.step()
        if stage.is_last:
            dist.all_reduce(loss, group=mesh["dp"].get_group())
            if mesh["dp"].get_local_rank() == mesh["tp"].get_local_rank() == 0:
                print(f"step {step}: loss {loss.item() / mesh['dp'].size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
