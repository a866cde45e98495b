"""A user's own metrics module."""

import torch
import torch.distributed as dist


class Meter:
    def __init__(self, best: bool) -> None:
        self.operation = dist.ReduceOp.MAX if best else dist.ReduceOp.SUM
        self.value = torch.zeros(())

    def update(self, value: torch.Tensor) -> None:
        self.value = self.value + value

    def result(self) -> float:
        self._synchronise()
        return float(self.value)

    def _synchronise(self) -> None:
        dist.all_reduce(self.value, op=self.operation)  # <- bug
