# ranks=2
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
    dist.all_reduce(torch.ones(4))
    work = dist.all_gather([torch.empty(2), torch.empty(2)], torch.ones(2), async_op=True)
    work.wait()
names = {event.key for event in profiler.key_averages()}
assert "gloo:all_reduce" in names, names
assert "gloo:all_gather" in names, names
