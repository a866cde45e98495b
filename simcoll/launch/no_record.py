"""Why a job left no record, and what to do about it: what ``simcoll run`` says in place of a report."""

from __future__ import annotations

from pathlib import Path

from simcoll.blackbox.gather import LaunchAccount
from simcoll.blackbox.stacks import stack_path
from simcoll.launch.torchrun_arguments import ProgramKind, RunRequest
from simcoll.recorder.store_hint import OWN_RANKS

_NO_GROUP = f"it has to call torch.distributed.init_process_group; {OWN_RANKS}"


def ranks_with_simcoll(folder: Path, launch: LaunchAccount) -> int:
    """How many ranks of this node loaded simcoll: from then on they offer stacks, until the files are removed."""
    return sum(stack_path(folder, rank.rank).exists() for rank in launch.ranks)


def why_unrecorded(request: RunRequest, loaded: int, *, interrupted: bool) -> tuple[str, str]:
    """The reason, and the advice, for a job none of whose ranks made a process group."""
    if loaded and interrupted:
        return "no rank got past init_process_group", OWN_RANKS
    if interrupted:
        return "no rank had imported torch yet", "let it run longer, or look at what its ranks do before that import"
    if loaded:
        return "the program created no process group", _NO_GROUP
    if request.kind is ProgramKind.COMMAND:
        where = f"in the Python that {request.program} starts"
        return "no rank imported torch where simcoll is installed", f"install simcoll {where}, next to its torch"
    return "no rank imported torch", "start the program that trains: simcoll records calls of torch.distributed"
