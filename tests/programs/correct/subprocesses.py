# ranks=2
"""A rank starts other programs; they inherit the environment and are not ranks."""

import multiprocessing
import subprocess
import sys

import torch
import torch.distributed as dist


def square(x):
    return x * x


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        command = [sys.executable, "-c", "import torch; print(torch.ones(2).sum().item())"]
        out = subprocess.run(command, capture_output=True)
        assert out.stdout == b"2.0\n", out
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == 2.0
