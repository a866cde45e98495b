"""Has ``torch.distributed.checkpoint`` save from one rank alone, into the dry run's folder.

The coordinator of a save holds as many plans as there are ranks, all of them its own: that they cover each tensor it
cannot find, only that its own part lies within. It changes the process for good, as
:mod:`simcoll.dryrun.rank.saved_files` does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simcoll.dryrun.rank.saved_files import saved_name

_PACKAGE = "torch.distributed.checkpoint"
_VALIDATE = "_validate_global_plan"
_METADATA = ".metadata"


def keep_checkpoints(folder: Path) -> None:
    """Have distributed checkpoints be written into the folder, and read from there where they were written."""
    with contextlib.suppress(ImportError):
        files: Any = importlib.import_module(f"{_PACKAGE}.filesystem")
        _redirect(files.FileSystemWriter, lambda path: folder / saved_name(path))
        _redirect(files.FileSystemReader, lambda path: _found(path, folder / saved_name(path)))
    with contextlib.suppress(ImportError):
        planner: Any = importlib.import_module(f"{_PACKAGE}.default_planner")
        if (validate := getattr(planner, _VALIDATE, None)) is not None:
            setattr(planner, _VALIDATE, _of_one_plan(validate))


def _found(asked: str | os.PathLike[str], saved: Path) -> str | os.PathLike[str]:
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
