# expect: SC701 culprits=6 ranks=8
# silent: ranks=2,4
"""A pipeline whose stages take 12 layers in parts of equal size, rounded up: over 8 stages, two each.

Six stages have them all. The last one still has the output layer; the one before it has nothing to optimise.
"""

import torch
import torch.distributed as dist
from pipeline_parallel import average_gradients, make_batch, make_stage, run_step
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import Schedule1F1B

LAYERS, MICROBATCHES, STEPS = 12, 8, 2


def main() -> None:
    dist.init_process_group()
    stages = min(8, dist.get_world_size())
    mesh = init_device_mesh("cpu", (dist.get_world_size() // stages, stages), mesh_dim_names=("dp", "pp"))
    each = -(-LAYERS // stages)
    place = mesh["pp"].get_local_rank()
    layers = range(place * each, min(LAYERS, (place + 1) * each))
    stage = make_stage(mesh["pp"], layers, torch.device("cpu"))
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-2)  # <- bug
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=nn.functional.cross_entropy)
    for step in range(STEPS):
        inputs, targets = make_batch(step, mesh["dp"])
        optimizer.zero_grad()
        run_step(schedule, stage, inputs, targets)
        average_gradients(stage.submod, mesh["dp"])
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
