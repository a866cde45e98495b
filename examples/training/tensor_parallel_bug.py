# expect: SC102 culprits=7 ranks=8
# silent: ranks=2,4
"""Tensor parallel over all ranks of a node, and the logits gathered by hand: 260 tokens do not divide by 8.

Seven ranks hold 33 rows of the output layer, and the last one 29.
"""

import torch
import torch.distributed as dist
from tensor_parallel import PLAN, Model, make_batch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


def gather_logits(local: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """All ranks' columns side by side."""
    parts = [torch.empty_like(local) for _ in range(mesh.size())]
    dist.all_gather(parts, local.contiguous(), group=mesh.get_group())  # <- bug
    return torch.cat(parts, dim=-1)


@torch.no_grad()
def main() -> None:
    dist.init_process_group()
    tp = min(8, dist.get_world_size())
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = parallelize_module(Model(layers=1), mesh["tp"], PLAN | {"output": ColwiseParallel()})
    inputs, targets = make_batch(0, mesh["dp"])
    logits = gather_logits(model(inputs), mesh["tp"])
    correct = (logits.argmax(dim=-1) == targets).sum()
    dist.all_reduce(correct, group=mesh["dp"].get_group())
    if dist.get_rank() == 0:
        print(f"{correct.item()} tokens are right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
