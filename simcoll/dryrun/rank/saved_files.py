"""Redirects what a dry run's program saves into the run's folder, where loading finds it: real checkpoints stay as is.

Ranks do not run in step, so that one which loads what another saves waits until the file is there.

``torch.distributed.checkpoint`` saves from one rank alone. The coordinator of a save has as many plans as there are
ranks, all of them its own: it can check that its own part lies within a tensor, but not that all parts cover it.
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
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from simcoll.core.patches import Patches

_PACKAGE = "torch.distributed.checkpoint"
_METADATA = ".metadata"
_LOOK_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0

_AnyPath: TypeAlias = "str | os.PathLike[str]"


def saved_name(path: _AnyPath) -> str:
    """The name in the run's folder of a file that the program saves."""
    return f"rank-saved-{hashlib.blake2b(os.fsencode(os.path.abspath(path)), digest_size=12).hexdigest()}"


def redirect_files(
    patches: Patches, folder: Path, *, waits: bool, loaded: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> None:
    """Let ``torch.save`` and ``torch.load`` use the folder; with ``waits`` a load waits for a file that is not there.

    ``loaded`` replaces each tensor that is loaded.
    """

    def save_to_folder(save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(f, (str, os.PathLike)):
                return save(obj, f, *args, **kwargs)
            Path(f).parent.stat()  # a missing folder is the program's mistake, and fails here too
            place = folder / saved_name(f)
            beside = place.with_name(f"{place.name}.{os.getpid()}")
            save(obj, beside, *args, **kwargs)
            beside.replace(place)
            return None

        return saving

    def load_from_folder(load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, (str, os.PathLike)):
                f = _found(f, folder / saved_name(f), _PATIENCE_SECONDS if waits else 0)
            result = load(f, *args, **kwargs)
            return result if loaded is None else pytree.tree_map_only(torch.Tensor, loaded, result)

        return loading

    patches.wrap(torch, "save", save_to_folder)
    patches.wrap(torch, "load", load_from_folder)


def _found(asked: _AnyPath, saved: Path, patience: float) -> _AnyPath:
    until = time.monotonic() + patience
    while not saved.exists():
        if os.path.exists(asked) or time.monotonic() > until:
            return asked
        time.sleep(_LOOK_SECONDS)
    return saved


def redirect_checkpoints(patches: Patches, folder: Path) -> None:
    """Write distributed checkpoints into the folder, and read from there those that were written there."""
    with contextlib.suppress(ImportError):
        files = importlib.import_module(f"{_PACKAGE}.filesystem")
        _redirect(patches, files.FileSystemWriter, lambda path: folder / saved_name(path))
        _redirect(patches, files.FileSystemReader, lambda path: _checkpoint_path(path, folder / saved_name(path)))
    with contextlib.suppress(ImportError):
        planner = importlib.import_module(f"{_PACKAGE}.default_planner")
        patches.wrap(planner, "_validate_global_plan", _of_one_plan)


def _checkpoint_path(asked: _AnyPath, saved: Path) -> _AnyPath:
    return saved if (saved / _METADATA).exists() else asked


def _redirect(patches: Patches, kind: type, place: Callable[[_AnyPath], _AnyPath]) -> None:
    """Let a class use ``place(path)`` instead of the path that it gets; ``reset`` may get none."""

    def created(begin: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(begin)
        def __init__(self: Any, path: _AnyPath, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            begin(self, place(path), *args, **kwargs)

        return __init__

    def reset(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def call(self: Any, checkpoint_id: _AnyPath | None = None) -> None:
            original(self, place(checkpoint_id) if checkpoint_id else checkpoint_id)

        return call

    patches.wrap(kind, "__init__", created)
    patches.wrap(kind, "reset", reset)


def _of_one_plan(validate: Callable[..., Any]) -> Callable[..., Any]:
    """The check of a global plan, without the check of what several plans cover."""

    @functools.wraps(validate)
    def checked(plans: list[Any], metadata: Any) -> Any:
        return validate(plans[:1], metadata)

    return checked
