"""A backend of torch.distributed for one rank without peers: every call is answered at once.

A dry run runs a rank's unchanged program on it, whatever backend that asks for. The answer is what the table says that
the rank would get if every other one had its inputs (:mod:`simcoll.dryrun.rank.symmetric_results`); tensors without
memory (fake ones, those on ``meta``) stay as they are. A receive from any source takes from the other ranks in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Store, Work
from torch._subclasses.fake_tensor import FakeTensor
from torch.futures import Future

from simcoll.backends.engine.python_group import PythonProcessGroup
from simcoll.backends.engine.tensor_data import TensorData
from simcoll.dryrun.rank.fake_device import truthfully
from simcoll.dryrun.rank.symmetric_results import is_from_elsewhere, outputs_alike
from simcoll.recorder.arguments import Arguments, arguments
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.spec.call import Call
from simcoll.spec.semantics import Array, Outputs
from simcoll.spec.table import METHODS

_NO_TIMEOUT = timedelta(0)

Received = Callable[[Sequence[torch.Tensor]], object]
"""Is told of tensors that hold what other ranks would have sent."""

Answer = Callable[[Call, Sequence[torch.Tensor], Sequence[Array]], "tuple[Outputs, bool] | None"]
"""What is known of a call's outputs, given its inputs, and whether for certain; None where nothing is."""


class FakeProcessGroup(PythonProcessGroup):
    """One rank's side of a group of ``size`` ranks that are not there.

    ``received`` is told of every result that is not known for certain; ``answer`` may know some. While ``blank`` holds,
    what another root would send is zero.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        store: Store,
        called: str = "fake",
        received: Received = lambda tensors: None,
        blank: Callable[[], bool] = lambda: False,
        answer: Answer = lambda call, tensors, inputs: None,
    ) -> None:
        super().__init__(rank, size, store, called)
        self._received = received
        self._blank = blank
        self._known = answer
        self._taken = 0

    def shutdown(self) -> None:
        """There is nothing to end."""

    abort = shutdown

    def _start_coalescing(self, device: torch.device) -> None:
        """Each call of a section is answered by itself."""

    def _end_coalescing(self, device: torch.device) -> Work:
        return FakeWork([], self._rank)

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """Nobody is absent."""

    def _collective(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Work:
        found = arguments(name, args, kwargs)
        both = found.tensors.get("inout")
        outputs = found.tensors.get("outputs", []) if both is None else both
        call = found.call()
        self._answer(found, call, both, outputs)
        # As a real one, a Work keeps what the call uses: its memory goes to nobody else meanwhile.
        kept = [tensor for tensors in found.tensors.values() for tensor in tensors]
        return FakeWork(outputs, self._source_of(call), kept)

    def _answer(
        self, found: Arguments, call: Call, both: Sequence[torch.Tensor] | None, outputs: Sequence[torch.Tensor]
    ) -> None:
        inputs = found.tensors.get("inputs", []) if both is None else both
        if not outputs or not all(map(_has_memory, (*inputs, *outputs))):
            return
        data = TensorData(inputs, outputs)
        with truthfully():
            given = () if self._blank() and is_from_elsewhere(call, self._rank) else data.read()
            known = self._known(call, inputs, given)
            results, certain = known or (outputs_alike(call, self._rank, self.size(), given), False)
            data.write(results)
        if self.size() > 1 and not certain:
            self._received([tensor for tensor, result in zip(outputs, results, strict=True) if result is not None])

    def _source_of(self, call: Call) -> int:
        """From whom a receive gets its message: who is named, or else each other rank in turn."""
        if call.peer is not None and call.peer >= 0:
            return call.peer
        others = [rank for rank in range(self.size()) if rank != self._rank]
        if call.peer is None or not others:
            return self._rank
        self._taken += 1
        return others[(self._taken - 1) % len(others)]


class FakeWork(Work):
    """A call that has ended when it is made."""

    def __init__(self, results: Sequence[torch.Tensor], source: int, kept: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._results, self._kept = list(results), kept
        self._source = source

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Nothing is waited for."""
        return True

    def is_completed(self) -> bool:
        """It has ended."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """It ended well."""

    def synchronize(self) -> None:
        """Nothing is waited for."""

    def result(self) -> list[torch.Tensor]:
        """The call's outputs."""
        return self._results

    def source_rank(self) -> int:
        """From which group rank a receive got its message."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """A future that has ended."""
        future: Future[Any] = Future()
        future.set_result(self._results)
        return future


def _has_memory(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _method(name: str) -> Callable[..., Work]:
    @functools.wraps(getattr(ProcessGroup, name), assigned=("__doc__",))
    def method(self: FakeProcessGroup, *args: Any, **kwargs: Any) -> Work:
        return self._collective(name, args, kwargs)

    method.__name__ = name
    return method


# What this torch has, whatever its version calls it.
for _name in METHODS:
    if hasattr(ProcessGroup, _name) and _name not in vars(FakeProcessGroup):
        setattr(FakeProcessGroup, _name, _method(_name))
leave_class_uncompiled(FakeProcessGroup)
leave_class_uncompiled(FakeWork)
