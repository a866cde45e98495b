# ranks=2
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
groups = [dist.new_group() for _ in range(3)]
errors = []


def work(group, factor):
    try:
        for step in range(20):
            value = torch.full((factor,), float(step))
            dist.all_reduce(value, group=group)
            assert value.tolist() == [2.0 * step] * factor
    except Exception as error:
        errors.append(error)


threads = [threading.Thread(target=work, args=(group, index + 1)) for index, group in enumerate(groups)]
for thread in threads:
    thread.start()
for _ in range(20):
    dist.all_reduce(torch.ones(7))
for thread in threads:
    thread.join()
assert not errors, errors
