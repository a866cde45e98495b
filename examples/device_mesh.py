"""A two-dimensional DeviceMesh: groups along each dimension, used asynchronously and in opposite orders.

Ranks wait for their two reductions in whichever order suits them; that is allowed, and no deadlock is invented.

Run: simcoll run --standalone --nproc-per-node 4 examples/device_mesh.py
simcoll: clean
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    names = ("replicate", "shard") if dist.get_rank() % 2 == 0 else ("shard", "replicate")
    ones = {name: torch.ones(3) for name in names}
    works = [dist.all_reduce(ones[name], group=mesh.get_group(name), async_op=True) for name in names]
    for work in works:
        assert work is not None
        work.wait()
    assert all(torch.equal(tensor, torch.full((3,), 2.0)) for tensor in ones.values())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
