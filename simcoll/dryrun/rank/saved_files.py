"""Lets a rank load tensors without memory, and save distributed checkpoints without the plans of other ranks.

In the first pass all plans that the coordinator of a save by ``torch.distributed.checkpoint`` has are its own: it can
check that its own part lies within a tensor, but not that all parts cover it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from simcoll.core.patches import Patches

_PLANNER = "torch.distributed.checkpoint.default_planner"


def load_and_save_alone(patches: Patches, loaded: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
    """Replace each tensor that ``torch.load`` returns by ``loaded`` of it, and check a checkpoint's own plan alone."""
    if loaded is not None:
        patches.wrap(torch, "load", functools.partial(_loading, loaded=loaded))
    with contextlib.suppress(ImportError):
        patches.wrap(importlib.import_module(_PLANNER), "_validate_global_plan", _of_one_plan)


def _loading(load: Callable[..., Any], *, loaded: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loading(*args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, loaded, load(*args, **kwargs))

    return loading


def _of_one_plan(validate: Callable[..., Any]) -> Callable[..., Any]:
    """The check of a global plan, without the check of the parts that several plans cover."""

    @functools.wraps(validate)
    def checked(plans: list[Any], metadata: Any) -> Any:
        return validate(plans[:1], metadata)

    return checked
