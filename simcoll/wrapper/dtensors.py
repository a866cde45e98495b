"""DTensors: which ranks hold the same elements, and what promises that they do."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from simcoll.core.patches import Patches
from simcoll.recorder.dynamo import leave_uncompiled

Promise: TypeAlias = Callable[[tuple[int, ...], torch.Tensor], None]
"""Looks at elements that ranks (global) are to hold alike; raises nothing."""


def dtensor() -> Any:
    """DTensor, if the program has imported it."""
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)


def local_part(tensor: Any) -> torch.Tensor:
    """The elements of a tensor that this rank has."""
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local() if hasattr(tensor, "placements") else tensor
    return local


def holders(mesh: Any, placements: Sequence[Any]) -> tuple[int, ...]:
    """The ranks (global) that hold the same elements of a DTensor as this one; empty where that is not known."""
    here = mesh.get_coordinate()
    if here is None or any(placement.is_partial() for placement in placements):
        return ()
    chosen = tuple(
        slice(None) if placement.is_replicate() else place for placement, place in zip(placements, here, strict=True)
    )
    return tuple(sorted(mesh.mesh[chosen].flatten().tolist()))


def watch_conversions(patches: Patches, check: Callable[[Callable[[], None]], None], promise: Promise) -> None:
    """Have ``promise`` look at replicated activations that the program makes DTensors of, or takes out of one, if it
    has imported DTensor; once. ``check`` runs what may fail.
    """
    kind = dtensor()
    with _patching:
        if kind is None or getattr(kind.to_local, "watches", False):
            return
        making, taking = kind.from_local, kind.to_local

        def look(made: Any, local: torch.Tensor) -> None:
            ranks = holders(made.device_mesh, made.placements)
            if len(ranks) > 1:
                promise(ranks, local)

        @functools.wraps(making)
        def from_local(local_tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            made = making(local_tensor, *args, **kwargs)
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                check(lambda: look(made, local_tensor))
            return made

        @functools.wraps(taking)
        def to_local(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            local = taking(tensor, *args, **kwargs)
            # A leaf is a parameter.
            if torch.is_grad_enabled() and not tensor.is_leaf and not torch.compiler.is_compiling():
                check(lambda: look(tensor, local))
            return local

        to_local.watches = True  # type: ignore[attr-defined]
        leave_uncompiled(look)
        patches.replace(kind, "from_local", staticmethod(from_local))
        patches.replace(kind, "to_local", to_local)


_patching = threading.Lock()
