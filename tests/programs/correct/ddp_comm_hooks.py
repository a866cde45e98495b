# ranks=2
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
for register in (
    lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    lambda model: model.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook,
    ),
):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2)))
    register(model)
    for _ in range(4):
        model(torch.randn(4, 16)).sum().backward()
