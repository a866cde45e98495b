# expect: SC106 culprits= ranks=2
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
send = [[2, 3], [1, 1]][rank]
receive = [[2, 1], [2, 1]][rank]
dist.all_to_all_single(torch.empty(sum(receive)), torch.ones(sum(send)), receive, send)  # <- bug
