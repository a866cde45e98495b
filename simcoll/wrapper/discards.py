"""Writes down when a rank throws gradients away: they are cleared, and no step was made since they last were.

A program that looks at its gradients itself leaves out the step in which they are not finite. It may clear them by an
optimizer or a module, or itself: that they are None, or zero on a host, shows when the next training pass of its model
begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils._python_dispatch import _disable_current_modes

from simcoll.core.patches import Patches
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.recorder.session import Session
from simcoll.values.clearings import clearings
from simcoll.values.contents import is_plain

_MOST = 4096

_LOOKED_AT, _ELEMENTS = 16, 16
"""Parameters of a model, and elements of each, by which it is known whether its gradients were cleared."""

Holder: TypeAlias = "Optimizer | nn.Module"
"""Whose gradients are cleared."""


class DiscardWatch:
    """The gradients that one rank clears: which of its clearings was the last one of an optimizer, or a module, unless
    a step was made since.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._since: WeakKeyDictionary[Holder, int] = WeakKeyDictionary()
        self._parameters: WeakKeyDictionary[nn.Module, Sequence[ref[nn.Parameter]]] = WeakKeyDictionary()
        self._steps = False
        self._written = 0

    def cleared(self, holder: Holder) -> None:
        """Gradients are cleared."""
        here, recorder = clearings.here, self._session.existing_recorder()
        before, here.count = self._since.get(holder), here.count + 1
        self._since[holder] = here.count
        called = before is not None and here.digested >= before
        if called and recorder is not None and self._written < _MOST:
            self._written += 1
            recorder.event("discarded", since=before, until=here.count)

    def entered(self, model: nn.Module) -> None:
        """A pass of a model begins: if one in training has no gradients, they were cleared, however the program does
        it; nothing is known of a program that makes its steps without an optimizer.
        """
        if not self._steps or not model.training or not torch.is_grad_enabled():
            return
        known = self._parameters.get(model)
        if known is None:
            trained = [one for one in model.parameters() if one.requires_grad]
            known = [ref(one) for one in trained[:: max(1, len(trained) // _LOOKED_AT)]]
            self._parameters[model] = known
        found = [one for one in (look() for look in known) if one is not None]
        if found and all(one.grad is None or _is_zero(one.grad) for one in found):
            self.cleared(model)

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step: it may have used the gradients of any module."""
        self._steps = True
        for holder in [one for one in self._since if one is optimizer or isinstance(one, nn.Module)]:
            del self._since[holder]


def _is_zero(gradient: torch.Tensor) -> bool:
    """True if the first elements of a gradient are zero, and its host knows."""
    if not is_plain(gradient) or gradient.device.type != "cpu":
        return False
    with _disable_current_modes(), torch.no_grad():
        return not gradient.reshape(-1)[:_ELEMENTS].any()


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
