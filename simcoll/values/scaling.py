"""Detects that a rank scales its losses: it then sends infinities on purpose while it looks for its scale."""

from __future__ import annotations

import functools
from typing import Any

from torch.amp.grad_scaler import GradScaler

from simcoll.core.patches import Patches
from simcoll.core.rank_local import RankLocal

_scales: RankLocal[list[bool]] = RankLocal(list)


def scales_losses() -> bool:
    """True if this rank has made an enabled GradScaler since :func:`watch_scalers`."""
    return bool(_scales.here)


def watch_scalers(patches: Patches) -> None:
    """Note each GradScaler, torch's own or one that derives from it, that is made from now on."""
    original = GradScaler.__init__

    @functools.wraps(original)
    def noted(self: GradScaler, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.is_enabled() and not _scales.here:
            _scales.here.append(True)

    patches.replace(GradScaler, "__init__", noted)
