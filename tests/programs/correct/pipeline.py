# ranks=2
"""torch.distributed.pipelining: only the first rank has inputs, only the last has targets."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
stage = PipelineStage(nn.Linear(6, 6), rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
for _ in range(2):
    if rank == 0:
        schedule.step(torch.randn(8, 6))
    else:
        losses = []
        schedule.step(target=torch.randn(8, 6), losses=losses)
        assert len(losses) == 4
dist.barrier()
