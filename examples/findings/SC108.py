"""A perturbation that is trained on all ranks; one rank has decoded its images itself, and they lie in memory as NHWC.

``zeros_like`` keeps that order. The shapes agree, so nothing fails, and elements are added up that do not belong
together.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC108.py
simcoll: SC108 rank 1
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    images = decoded() if dist.get_rank() == 1 else cached()
    noise = torch.zeros_like(images)
    for _ in range(2):
        noise += 0.01 * torch.randn(images.shape)
        average(noise)
    dist.destroy_process_group()


def cached() -> torch.Tensor:
    return torch.rand(4, 3, 8, 8)


def decoded() -> torch.Tensor:
    pixels = torch.randint(256, (4, 8, 8, 3))
    return pixels.permute(0, 3, 1, 2) / 255


def average(noise: torch.Tensor) -> None:
    # Bug: noise should be made by torch.zeros(images.shape), which has one memory order.
    dist.all_reduce(noise)
    noise /= dist.get_world_size()


if __name__ == "__main__":
    main()
