"""The settings of a dry run, and the names of its ranks' files; without torch, for later readers of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simcoll.dryrun.rank.known_inputs import KnownInputs
from simcoll.dryrun.rank.shared_files import FileSharing


@dataclass(frozen=True, slots=True)
class DryRun:
    """The settings of a dry run. ``memory`` is in bytes, None for no limit; ``steps`` is None for no limit.

    ``script`` is a module's name, as for ``python -m``, where ``module`` is true. With ``cuda`` each node has a fake
    GPU for each of its ranks; with ``counts`` the ranks' computation is counted. ``known`` are the inputs of calls in
    the pass before. Without ``files`` ranks write where the script says. With ``again`` a pass with known inputs may
    follow, so that a rank that goes round and round on one guess is ended.
    """

    script: Path
    arguments: Sequence[str]
    world_size: int
    local_world_size: int
    folder: Path
    steps: int | None = None
    fake_tensors: bool = False
    memory: int | None = None
    module: bool = False
    cuda: bool = True
    counts: bool = False
    known: KnownInputs | None = None
    files: FileSharing | None = None
    again: bool = False


def log_name(rank: int) -> str:
    """The file with a rank's stdout and stderr."""
    return f"rank{rank:05d}.log"
