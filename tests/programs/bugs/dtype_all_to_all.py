# expect: SC103 culprits=1 ranks=4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
tokens = torch.arange(8.0)
if dist.get_rank() == 1:
    tokens = tokens.to(torch.bfloat16)
routed = torch.empty_like(tokens)
dist.all_to_all_single(routed, tokens)  # <- bug
