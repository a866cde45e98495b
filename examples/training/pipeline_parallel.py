"""Pipeline parallel: each rank has some of the layers, and microbatches are passed on (1F1B); pipelines are replicated.

Run: torchrun --standalone --nproc-per-node 4 examples/training/pipeline_parallel.py --stages 2
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

FEATURES, WIDTH, CLASSES, BATCH = 16, 32, 4, 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.relu(self.linear(self.norm(x)))


def layers_of(stage: int, stages: int, layers: int) -> range:
    """Which layers a stage has: as many as any other, or one more while there are some left over."""
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def make_stage(mesh: DeviceMesh, layers: range, device: torch.device) -> PipelineStage:
    """This rank's layers; the first stage has what reads the inputs, the last one what predicts."""
    stage, stages = mesh.get_local_rank(), mesh.size()
    modules: list[nn.Module] = [nn.Linear(FEATURES, WIDTH)] if stage == 0 else []
    for layer in layers:
        torch.manual_seed(layer)
        modules.append(Layer())
    if stage == stages - 1:
        modules.append(nn.Linear(WIDTH, CLASSES))
    return PipelineStage(nn.Sequential(*modules).to(device), stage, stages, device, group=mesh.get_group())


def make_batch(step: int, mesh: DeviceMesh) -> tuple[torch.Tensor, torch.Tensor]:
    """Points whose class a fixed linear map decides; the ranks of a pipeline have the same ones."""
    teacher = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1 + step * mesh.size() + mesh.get_local_rank())
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs.to(mesh.device_type), (inputs @ teacher).argmax(dim=1).to(mesh.device_type)


def run_step(schedule: Schedule1F1B, stage: PipelineStage, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """All microbatches forward and backward; the mean loss on the last stage, zero elsewhere."""
    losses: list[torch.Tensor] = []
    given = (inputs,) if stage.is_first else ()
    if stage.is_last:
        schedule.step(*given, target=targets, losses=losses)
    else:
        schedule.step(*given)
    return torch.stack(losses).mean().detach() if losses else torch.zeros((), device=inputs.device)


def average_gradients(module: nn.Module, mesh: DeviceMesh) -> None:
    for parameter in module.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=mesh.get_group())
        parameter.grad /= mesh.size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=2, help="ranks of one pipeline")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()

    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    shape = dist.get_world_size() // options.stages, options.stages
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "pp"))
    place = mesh["pp"].get_local_rank()
    stage = make_stage(mesh["pp"], layers_of(place, options.stages, options.layers), device)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-2)
    for step in range(options.steps):
        inputs, targets = make_batch(step, mesh["dp"])
        optimizer.zero_grad()
        loss = run_step(schedule, stage, inputs, targets)
        average_gradients(stage.submod, mesh["dp"])
        optimizer.step()
        dist.all_reduce(loss)  # the last stages' losses, and zeros
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item() / mesh['dp'].size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
