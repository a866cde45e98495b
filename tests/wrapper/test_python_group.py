"""Groups that a program has written in Python and registered as a backend: they work as without simcoll, unrecorded."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simcoll.testing import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.gloo]


class Forwarding(dist.ProcessGroup):
    """Hands its calls on to Gloo; it has no name, as torch allows."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stubs know one constructor
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # C++ asks under this name
        return "forwarding"

    def allreduce(self, tensors: Any, *options: Any) -> Any:
        return self._gloo.allreduce(tensors, *options)

    def broadcast(self, tensors: Any, *options: Any) -> Any:
        return self._gloo.broadcast(tensors, *options)

    def allgather(self, outputs: Any, inputs: Any, *options: Any) -> Any:
        return self._gloo.allgather(outputs, inputs, *options)


@pytest.mark.parametrize("values", ["off", "all"])
@pytest.mark.filterwarnings("ignore")
def test_a_registered_group_works(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = dict(dist.Backend._plugins)  # type: ignore[attr-defined]
    monkeypatch.setattr(dist.Backend, "_plugins", plugins)
    if "FORWARDING" not in plugins:
        dist.Backend.register_backend("forwarding", Forwarding, devices=["cpu"])

    def program(rank: int) -> list[float]:
        group = dist.new_group(backend="forwarding")
        numbers = torch.full((2,), float(rank))
        dist.all_reduce(numbers, group=group)
        model = DistributedDataParallel(nn.Linear(2, 1), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(4, 2) * (rank + 1)).sum().backward()
            optimizer.step()
        return numbers.tolist()

    assert run_ranks(3, program, backend="gloo", values=values) == [[3.0, 3.0]] * 3
