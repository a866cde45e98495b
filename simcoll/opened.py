"""Opening what a command is given to read, which may be no file at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def open_at_once(path: Path) -> BinaryIO:
    """Open for reading, without waiting for who writes into a named pipe: one that nobody does is empty.

    A pipe that has its writer (``<(nvidia-smi topo -m)``) is read as a file is. Raises OSError.
    """
    file = open(path, "rb", opener=_opener)  # noqa: SIM115 - it is the caller's
    os.set_blocking(file.fileno(), True)
    return file


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
