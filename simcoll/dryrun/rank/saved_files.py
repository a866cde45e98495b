"""Keeps what a dry run's program saves out of the way of real checkpoints: in the run's folder, where loading finds it.

Ranks do not wait for each other, so that one which loads what another saves waits until the file is there.

Has ``torch.distributed.checkpoint`` save from one rank alone, into the dry run's folder.

The coordinator of a save holds as many plans as there are ranks, all of them its own: that they cover each tensor it
cannot find, only that its own part lies within. It changes the process for good, as
:mod:`simcoll.dryrun.rank.saved_files` does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

_PACKAGE = "torch.distributed.checkpoint"
_VALIDATE = "_validate_global_plan"
_METADATA = ".metadata"


def keep_checkpoints(folder: Path) -> None:
    """Have distributed checkpoints be written into the folder, and read from there where they were written."""
    with contextlib.suppress(ImportError):
        files: Any = importlib.import_module(f"{_PACKAGE}.filesystem")
        _redirect(files.FileSystemWriter, lambda path: folder / saved_name(path))
        _redirect(files.FileSystemReader, lambda path: _checkpoint_path(path, folder / saved_name(path)))
    with contextlib.suppress(ImportError):
        planner: Any = importlib.import_module(f"{_PACKAGE}.default_planner")
        if (validate := getattr(planner, _VALIDATE, None)) is not None:
            setattr(planner, _VALIDATE, _of_one_plan(validate))


def _checkpoint_path(asked: str | os.PathLike[str], saved: Path) -> str | os.PathLike[str]:
    return saved if (saved / _METADATA).exists() else asked


def _redirect(kind: Any, place: Callable[[str | os.PathLike[str]], str | os.PathLike[str]]) -> None:
    """Have the class take another path than it is given; an empty one says that there is none."""
    begin, again = kind.__init__, kind.reset

    @functools.wraps(begin)
    def made(self: Any, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        begin(self, place(path), *args, **kwargs)

    @functools.wraps(again)
    def reset(self: Any, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        again(self, place(checkpoint_id) if checkpoint_id else checkpoint_id)

    kind.__init__, kind.reset = made, reset


def _of_one_plan(validate: Callable[..., Any]) -> Callable[..., Any]:
    """The check of a plan for all ranks, without that of what several plans cover."""

    @functools.wraps(validate)
    def checked(plans: list[Any], metadata: Any) -> Any:
        return validate(plans[:1], metadata)

    return checked


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
