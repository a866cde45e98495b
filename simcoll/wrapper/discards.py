"""Writes down when a rank throws gradients away: they are cleared, and no step was made since they last were.

A program that looks at its gradients itself leaves out the step in which they are not finite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from simcoll.core.patches import Patches
from simcoll.recorder.dynamo import leave_class_uncompiled
from simcoll.recorder.session import Session
from simcoll.values.clearings import clearings

_MOST = 4096

Holder: TypeAlias = "Optimizer | nn.Module"
"""Whose gradients are cleared."""


class DiscardWatch:
    """The gradients that one rank clears: which of its clearings was the last one of an optimizer, or a module, unless
    a step was made since.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._since: WeakKeyDictionary[Holder, int] = WeakKeyDictionary()
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

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has made a step: it may have used the gradients of any module."""
        for holder in [one for one in self._since if one is optimizer or isinstance(one, nn.Module)]:
            del self._since[holder]


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
