"""Writes down when a rank throws gradients away: they are cleared, and no step was made since they last were.

A program that looks at its gradients itself leaves out the step in which they are not finite. It may clear them by an
optimizer or a module, or itself: that they are None, or zero on a host, shows when the next training pass of its model
begins. Who clears what is clear already, with no training pass in between, throws nothing away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from simcoll.core.patches import Patches
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.recorder.session import Session
from simcoll.values.clearings import clearings
from simcoll.values.contents import apart, is_plain, plainly

_MOST = 4096
"""Clearings that are written down, of those that a rank makes by a call, and of those that its passes show."""

_LOOKED_AT, _ELEMENTS = 16, 16
"""Parameters of a model, and elements of each, by which it is known whether its gradients were cleared."""

Holder: TypeAlias = "Optimizer | nn.Module"
"""Whose gradients are cleared."""


class DiscardWatch:
    """The gradients that one rank clears: which of its clearings was the last one of an optimizer, or a module, unless
    a step was made since.
    """

    def __init__(self, session: Session, stepped_by_optimizer: Callable[[nn.Module], bool]) -> None:
        """``stepped_by_optimizer``: whether this rank has an optimizer of any of a module's parameters."""
        self._session = session
        self._stepped_by_optimizer = stepped_by_optimizer
        self._since: WeakKeyDictionary[Holder, int] = WeakKeyDictionary()
        self._parameters: WeakKeyDictionary[nn.Module, Sequence[ref[nn.Parameter]]] = WeakKeyDictionary()
        self._steps = False
        self._entered: int | None = None
        self._written = {True: 0, False: 0}
        self._showing: WeakSet[Optimizer] = WeakSet()
        self._before: WeakKeyDictionary[Optimizer, _Versions] = WeakKeyDictionary()

    def cleared(self, holder: Holder) -> None:
        """Gradients are about to be cleared."""
        holder = _wrapped(holder)
        if can_be_followed(holder):
            before = self._since.get(holder)
            # Programs without a wrapper show no passes.
            passed = self._entered is None or (before is not None and self._entered >= before)
            self._clear(holder, before, thrown=passed or self._has_gradients(holder), called=True)

    def entered(self, model: nn.Module) -> None:
        """A pass of a model begins: if one in training has no gradients, they were cleared, however the program does
        it.
        """
        model = _wrapped(model)
        if not model.training or not torch.is_grad_enabled():
            return
        known = self._known(model)
        if known and not any(map(_has_gradient, known)):
            before = self._since.get(model)
            passed = before is not None and self._entered is not None and self._entered >= before
            self._clear(model, before, thrown=passed, called=False)
        self._entered = clearings.here.count

    def steps(self, optimizer: Optimizer) -> None:
        """An optimizer is about to make a step."""
        if can_be_followed(optimizer):
            self._before[optimizer] = _Versions.of(optimizer)

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step: it may have used the gradients of any module."""
        if can_be_followed(optimizer) and not self._has_moved(optimizer):
            return
        self._steps = True
        for holder in [one for one in self._since if one is optimizer or isinstance(one, nn.Module)]:
            del self._since[holder]

    def _has_moved(self, optimizer: Optimizer) -> bool:
        """False if a step had no gradients, or has changed nothing where others of this optimizer showed their changes:
        some write past the versions of tensors.
        """
        before, now = self._before.get(optimizer), _Versions.of(optimizer)
        if before is None or before.total is None or now.total is None:
            return True
        if before.total != now.total:
            self._showing.add(optimizer)
            return True
        return (before.gradients or now.gradients) and optimizer not in self._showing

    def _clear(self, holder: Holder, before: int | None, *, thrown: bool, called: bool) -> None:
        """Note a clearing; of what is ``thrown`` away since the one ``before`` it is written down. ``called``: by a
        call.
        """
        here, recorder = clearings.here, self._session.existing_recorder()
        here.count += 1
        self._since[holder] = here.count
        digested = before is not None and here.digested >= before
        if thrown and digested and recorder is not None and self._written[called] < _MOST:
            self._written[called] += 1
            recorder.event("discarded", since=before, until=here.count, optimized=self._is_optimized(holder))

    def _is_optimized(self, holder: Holder) -> bool:
        """True if a step of an optimizer would have used the gradients; the program's own step may have used them."""
        return self._steps or isinstance(holder, Optimizer) or self._stepped_by_optimizer(holder)

    def _has_gradients(self, holder: Holder) -> bool:
        if isinstance(holder, nn.Module):
            return any(map(_has_gradient, self._known(holder)))
        parameters = (one for group in holder.param_groups for one in group["params"])
        return any(map(_has_gradient, _some([one for one in parameters if one.grad is not None])))

    def _known(self, model: nn.Module) -> list[nn.Parameter]:
        known = self._parameters.get(model)
        if known is None:
            known = [ref(one) for one in _some([one for one in model.parameters() if one.requires_grad])]
            self._parameters[model] = known
        return [one for one in (look() for look in known) if one is not None]


@dataclass(frozen=True, slots=True)
class _Versions:
    """What is known of an optimizer's parameters beside a step: how often they were written to, all together (None
    where one does not tell), and whether any has a gradient.
    """

    total: int | None
    gradients: bool

    @classmethod
    def of(cls, optimizer: Optimizer) -> _Versions:
        """Those of now."""
        with apart():
            parameters = [*parameters_of(optimizer)]
            gradients = any(one.grad is not None for one in parameters)
            try:
                return cls(sum(one._version for one in parameters), gradients)
            except RuntimeError:
                # One of inference mode has no versions.
                return cls(None, gradients)


def parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The parameters of all groups of an optimizer."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _wrapped(holder: Any) -> Any:
    """The module that DistributedDataParallel wraps, which has the same gradients; anything else as it is."""
    while isinstance(holder, DistributedDataParallel):
        holder = holder.module
    return holder


def can_be_followed(holder: Holder) -> bool:
    """True if an optimizer or a module can be a key."""
    try:
        hash(holder)
    except TypeError:
        return False
    return True


_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


def _some(tensors: Sequence[_Tensor]) -> Sequence[_Tensor]:
    return tensors[:: max(1, len(tensors) // _LOOKED_AT)]


def _has_gradient(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and not _is_zero(parameter.grad)


def _is_zero(gradient: torch.Tensor) -> bool:
    """True if the first elements of a gradient are zero, and its host knows."""
    if not is_plain(gradient):
        return False
    with apart():
        gradient = plainly(gradient)
        return gradient.device.type == "cpu" and not gradient.reshape(-1)[:_ELEMENTS].any()


leave_class_uncompiled(DiscardWatch)


def watch_clearing(patches: Patches, clear: Callable[[Holder], None]) -> None:
    """Have ``clear`` told from now on whose gradients are about to be cleared; raises nothing."""
    for kind in (Optimizer, nn.Module):
        patches.replace(kind, "zero_grad", _told(kind.zero_grad, clear))


def _told(clearing: Any, clear: Callable[[Holder], None]) -> Any:
    @functools.wraps(clearing)
    def cleared(holder: Holder, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            clear(holder)
        return clearing(holder, *args, **kwargs)

    return cleared
