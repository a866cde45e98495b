# expect: SC601 culprits=0 ranks=3
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
spectrum = torch.ones(4, dtype=torch.complex64 if dist.get_rank() == 0 else torch.float32)
dist.all_reduce(spectrum, dist.ReduceOp.MAX)  # <- bug
