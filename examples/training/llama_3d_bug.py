# expect: SC202 culprits=15 ranks=16
# silent: ranks=2,4
"""3-D parallelism, and a log line that takes the world's last rank for the last stage of the pipeline.

It is, as long as nothing is data parallel. With more than four ranks ``dp`` is the outermost dimension of the mesh:
every four ranks have a last stage, and of those that add up their loss only one comes.
"""

import torch
import torch.distributed as dist
from llama_3d import MICROBATCHES, clip, loss_of, make_stage, run_step
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import Schedule1F1B

STEPS = 2


def main() -> None:
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tp, pp = 2, min(2, world_size // 2)
    mesh = init_device_mesh("cpu", (world_size // (pp * tp), pp, tp), mesh_dim_names=("dp", "pp", "tp"))
    stage = make_stage(mesh, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = run_step(schedule, stage, mesh, step)
        clip(stage.submod, mesh, most=1.0)
        optimizer.step()
        if rank == world_size - 1:
            dist.all_reduce(loss, group=mesh["dp"].get_group())  # <- bug
            print(f"step {step}: loss {loss.item() / mesh['dp'].size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
