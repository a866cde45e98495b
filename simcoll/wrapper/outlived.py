"""Writes down whether a rank's weights are finite after a step, if a call has carried NaN or an infinity before it.

A program may mend its gradients itself, as by ``torch.nan_to_num``, and make the step. What a step has used is in the
weights, or in the state of the optimizer; so all of these are read, but only after such a call. While gradients of any
optimizer still are not finite, their step may come, and the next one is looked at. No host waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.optimizer import Optimizer

from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.recorder.session import Session
from simcoll.values.choice import Choice
from simcoll.values.clearings import clearings
from simcoll.values.contents import Arrivals, HostCopy, apart, is_plain, plainly
from simcoll.wrapper.discards import parameters_of
from simcoll.wrapper.dtensors import local_part

_MOST_LOOKS = 256


class OutlivedWatch:
    """The weights of one rank that has sent or received what is not finite."""

    def __init__(
        self,
        session: Session,
        choice: Choice,
        optimizers: Callable[[], Iterable[Optimizer]],
        models: Callable[[], Iterable[torch.Tensor]],
    ) -> None:
        """``optimizers`` are all that the rank has, ``models`` the parameters of models that the program may step by
        itself.
        """
        self._session = session
        self._choice = choice
        self._optimizers = optimizers
        self._models = models
        self._looks = 0
        self._arrivals: Arrivals[int] = Arrivals()

    def stepped(self) -> None:
        """An optimizer has made a step."""
        if clearings.here.carried and self._looks < _MOST_LOOKS:
            clearings.here.carried = False
            self._looks += 1
            with self._choice.counted(), apart():
                self._look()
        self.settle()

    def _look(self) -> None:
        optimizers = [*self._optimizers()]
        parameters = [*(one for optimizer in optimizers for one in parameters_of(optimizer)), *self._models()]
        parameters = [*{id(one): one for one in parameters}.values()]
        weights = [local_part(one) for one in parameters]
        state = [local_part(one) for optimizer in optimizers for one in _state(optimizer)]
        gradients = [local_part(one.grad) for one in parameters if one.grad is not None]
        if not weights or not all(map(_can_be_read, (*weights, *state, *gradients))):
            return
        device = plainly(weights[0]).device
        if any(plainly(one).device != device for one in (*weights, *gradients)):
            return
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        # The number of a step of the host's own is finite.
        kept = [*weights, *(one for one in state if plainly(one).device == device)]
        here = clearings.here
        here.count += 1
        both = torch.stack([_are_finite(kept, device), _are_finite(gradients, device)])
        self._arrivals.add(HostCopy.of(both.to(torch.int64)), here.count)

    def settle(self, *, last: bool = False) -> None:
        """Write down what has come to the host; the ``last`` time, what comes soon."""
        self._arrivals.settle(self._arrived, last=last)

    def _arrived(self, words: npt.NDArray[np.int64], until: int) -> None:
        weights, gradients = (bool(one) for one in words.tolist())
        recorder = self._session.existing_recorder()
        if weights and not gradients:
            clearings.here.carried = True
        elif recorder is not None:
            recorder.event("outlived", until=until, finite=weights)


def _state(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    values = (value for one in optimizer.state.values() if isinstance(one, dict) for value in one.values())
    return (value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point())


def _can_be_read(tensor: torch.Tensor) -> bool:
    """True for a plain tensor of a dtype for which torch knows what is finite."""
    return is_plain(tensor) and plainly(tensor).element_size() > 1


def _are_finite(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    finite = [plainly(tensor).detach().isfinite().all() for tensor in tensors]
    return torch.stack(finite).all() if finite else torch.ones((), dtype=torch.bool, device=device)


leave_class_uncompiled(OutlivedWatch)
