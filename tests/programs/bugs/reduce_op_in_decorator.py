# expect: SC104 culprits=1 ranks=4
"""The call is made by a decorator's wrapper, far from the function that everybody reads."""

import functools

import torch
import torch.distributed as dist


def averaged(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        value = function(*arguments)
        operation = dist.ReduceOp.PRODUCT if dist.get_rank() == 1 else dist.ReduceOp.SUM
        dist.all_reduce(value, operation)  # <- bug
        return value / dist.get_world_size()

    return wrapper


@averaged
def loss(prediction, target):
    return ((prediction - target) ** 2).mean()


dist.init_process_group("gloo")
loss(torch.ones(4), torch.zeros(4))
