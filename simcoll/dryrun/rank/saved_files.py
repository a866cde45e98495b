"""Keeps what a dry run's program saves out of the way of real checkpoints: in the run's folder, where loading finds it.

Ranks do not wait for each other, so that one which loads what another saves waits until the file is there.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0


def saved_name(path: str | os.PathLike[str]) -> str:
    """The file in the run's folder that stands for one which the program saves."""
    return f"rank-saved-{hashlib.blake2b(os.fsencode(os.path.abspath(path)), digest_size=12).hexdigest()}"


def keep_files(folder: Path, *, waits: bool, loaded: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
    """Have ``torch.save`` and ``torch.load`` use the folder from now on; ``waits`` is for ranks that others precede.

    ``loaded`` replaces each tensor that is loaded.
    """
    save, load = torch.save, torch.load

    @functools.wraps(save)
    def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(f, (str, os.PathLike)):
            return save(obj, f, *args, **kwargs)
        Path(f).parent.stat()  # a folder that is missing is the program's mistake, here as there
        place = folder / saved_name(f)
        beside = place.with_name(f"{place.name}.{os.getpid()}")
        save(obj, beside, *args, **kwargs)
        beside.replace(place)
        return None

    @functools.wraps(load)
    def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            f = _found(f, folder / saved_name(f), _PATIENCE_SECONDS if waits else 0)
        result = load(f, *args, **kwargs)
        return result if loaded is None else pytree.tree_map_only(torch.Tensor, loaded, result)

    torch.save, torch.load = saving, loading


def _found(asked: str | os.PathLike[str], saved: Path, patience: float) -> str | os.PathLike[str]:
    until = time.monotonic() + patience
    while not saved.exists():
        if os.path.exists(asked) or time.monotonic() > until:
            return asked
        time.sleep(_LOOK_SECONDS)
    return saved
