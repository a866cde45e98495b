"""Detects that a rank scales its losses: it then sends infinities on purpose while it looks for its scale.

A round of the search is what the rank does until its scaler looks at the gradients (``update``) and halves the scale:
however many calls it makes, from equal layers or for several micro-batches, they overflow for one reason.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch.amp.grad_scaler import GradScaler

from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal

_Method = TypeVar("_Method", bound=Callable[..., Any])

_COUNTED = "_simcoll_counts_rounds"


class _Scalers:
    """The enabled scalers that a rank has made, by their rounds, and the round that the furthest of them is in."""

    def __init__(self) -> None:
        self.rounds: WeakKeyDictionary[GradScaler, int] = WeakKeyDictionary()
        self.round: int | None = None

    def at(self, scaler: GradScaler, at: int) -> None:
        """Note the round of a scaler. Several that search side by side, as for two models, count as one."""
        self.rounds[scaler] = at
        self.round = max(self.round or 0, at)


_scalers: RankLocal[_Scalers] = RankLocal(_Scalers)
_patching = threading.Lock()


def scaling_round() -> int | None:
    """How many rounds of its search for a scale this rank has ended; None if it has made no enabled GradScaler since
    :func:`watch_scalers`.
    """
    return _scalers.here.round


def watch_scalers(patches: Patches) -> None:
    """Note each GradScaler, torch's own or one that derives from it, that is made from now on, and its rounds."""
    original = GradScaler.__init__

    @functools.wraps(original)
    def noted(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.is_enabled():
            _scalers.here.at(self, _scalers.here.round or 0)
            _count_rounds(type(self), patches)

    patches.replace(GradScaler, "__init__", noted)


def _count_rounds(kind: type[GradScaler], patches: Patches) -> None:
    """Count the updates of scalers of a class: it may have a method of its own, which need not call torch's."""
    owner = next(one for one in kind.__mro__ if "update" in vars(one))
    with _patching:
        if not hasattr(vars(owner)["update"], _COUNTED):
            patches.replace(owner, "update", _counted(vars(owner)["update"]))


def _counted(update: _Method) -> _Method:
    @functools.wraps(update)
    def counted(self: GradScaler, *args: Any, **kwargs: Any) -> Any:
        scalers = _scalers.here
        before = scalers.rounds.get(self)
        result = update(self, *args, **kwargs)
        if before is not None:
            # Not one more than now: the method may have called a base class's, which has counted this update.
            scalers.at(self, before + 1)
        return result

    setattr(counted, _COUNTED, True)
    return counted  # type: ignore[return-value]
