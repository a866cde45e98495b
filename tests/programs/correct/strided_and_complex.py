# ranks=2
"""Views with offsets, complex numbers, booleans, bytes and a channels_last pair that agrees."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
base = torch.zeros(10)
window = base[2:6]
window.fill_(rank + 1)
dist.all_reduce(window)
assert base.tolist() == [0, 0, 3, 3, 3, 3, 0, 0, 0, 0]
complex_value = torch.tensor([1 + 2j, 3 - 1j])
dist.all_reduce(complex_value)
assert complex_value[0] == 2 + 4j
flags = torch.tensor([rank == 0, rank == 1]).to(torch.uint8)
dist.all_reduce(flags, dist.ReduceOp.MAX)
assert flags.tolist() == [1, 1]
image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
dist.all_reduce(image)
assert image.eq(2).all()
low = torch.ones(4, dtype=torch.bfloat16)
dist.all_reduce(low)
assert low.tolist() == [2.0] * 4
