"""The process of one rank of a dry run, from the fork to its end.

The environment variables that identify a rank are set to those of the dry run.
torchrun's variables are set for every rank. Those of Slurm, Open MPI and PMI are replaced where they are set: a script
that reads ``SLURM_PROCID`` first must not find that of the batch step which runs the dry run.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import multiprocessing.util
import os
import random
import re
import resource
import runpy
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from simcoll.backends.engine.outcome import exit_code
from simcoll.core.patches import Patches
from simcoll.dryrun.rank.event_kinds import STEPS_MADE
from simcoll.dryrun.rank.fake_cuda import install_fake_cuda
from simcoll.dryrun.rank.fake_device import FakeDevices
from simcoll.dryrun.rank.fake_distributed import install_fake_distributed
from simcoll.dryrun.rank.known_inputs import InputsFile, inputs_name
from simcoll.dryrun.rank.pipeline_stages import StageMetadata, share_stage_metadata
from simcoll.dryrun.rank.private_mounts import let_folders_move, mount_privately
from simcoll.dryrun.rank.redirected_files import redirect_files
from simcoll.dryrun.rank.script_launch import RankOfScript, ScriptLaunch
from simcoll.dryrun.rank.settings import DryRun, log_name
from simcoll.dryrun.rank.shared_files import FileSharing, SharedFiles, journal_name
from simcoll.dryrun.rank.taint import TaintTracker
from simcoll.dryrun.rank.torch_patches import patched_torch, use_lazy_shards
from simcoll.launch.fork import end_as_interpreter, leave_parent
from simcoll.pricing.device_ops import EVENT, DeviceOrder, Item
from simcoll.recorder.session import active_session
from simcoll.recorder.source import program_begins
from simcoll.wrapper.hooks import enable

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_RANK = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "OMPI_UNIVERSE_SIZE",
)
_LOCAL_RANK = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)
_NODE = ("SLURM_NODEID", "NODE_RANK")
_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", "NNODES")
_OTHERS_PREFIX = "TORCHELASTIC_"


def set_rank_variables(environ: MutableMapping[str, str], rank: int, world_size: int, local_size: int) -> None:
    """Set the variables of ``rank`` (global) in a job of nodes with ``local_size`` ranks each."""
    for name in [name for name in environ if name.startswith(_OTHERS_PREFIX)]:
        del environ[name]
    node, local = divmod(rank, local_size)
    nodes = -(-world_size // local_size)
    environ.update(_of_torchrun(rank, world_size, local, local_size, node, nodes))
    environ.update(dict.fromkeys(_THREADS, "1"))
    values = (
        (_RANK, rank),
        (_SIZE, world_size),
        (_LOCAL_RANK, local),
        (_LOCAL_SIZE, local_size),
        (_NODE, node),
        (_NODES, nodes),
    )
    environ.update({name: str(value) for names, value in values for name in names if name in environ})


def show_every_gpu(environ: Any = os.environ) -> None:
    """Let the program see no ``CUDA_VISIBLE_DEVICES``, as under torchrun, which has C code leave real GPUs alone."""
    environ._data.pop(environ.encodekey("CUDA_VISIBLE_DEVICES"), None)


def _of_torchrun(rank: int, size: int, local: int, local_size: int, node: int, nodes: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "preflight",
    }


if TYPE_CHECKING:
    from simcoll.dryrun.rank.flop_counter import WorkCounter

_WANTED_MEMORY = re.compile(rb"MemoryError|allocate memory|std::bad_alloc|failed to map segment|Errno 12\b")
_TAIL_BYTES = 1 << 16
_RUNPY = runpy.run_path.__code__.co_filename


def wanted_memory(dry_run: DryRun, rank: int) -> bool:
    """True if the end of a failed rank's output says that memory ran out."""
    try:
        with open(dry_run.folder / log_name(rank), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return _WANTED_MEMORY.search(file.read()) is not None
    except OSError:
        return False


def become_rank(dry_run: DryRun, rank: int, launch: ScriptLaunch) -> NoReturn:
    """Run the script as ``rank``, and end the process as an interpreter does."""
    code, names = 1, dict[str, Any]()
    try:
        launch.leave_supervisor()
        with _begin(dry_run, rank, launch):
            # A program's variables live to its end: a Work that it keeps is not dropped before.
            names |= _run(dry_run)
        code = 0
    except BaseException as error:
        code = exit_code(error)
        if not isinstance(error, SystemExit):
            error.__traceback__ = _of_program(error.__traceback__)
            # A script that has started its ranks is none of them: no record tells how it ends.
            hook = sys.excepthook if launch.exit_code != 0 else sys.__excepthook__
            hook(*sys.exc_info())
        elif isinstance(error.code, str):
            print(error.code, file=sys.stderr)  # noqa: T201
    finally:
        end_as_interpreter(code)


def _of_program(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback as the program's interpreter would print it: without the frames that run the program."""
    begun = traceback
    while begun is not None and begun.tb_frame.f_code.co_filename in (__file__, _RUNPY):
        begun = begun.tb_next
    return begun or traceback


def _is_running(dry_run: DryRun, rank: int) -> bool:
    """True if a rank has begun and not ended; False too where the file system has no locks."""
    try:
        with open(dry_run.folder / log_name(rank), "rb") as log:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _run(dry_run: DryRun) -> dict[str, Any]:
    """Run the program and return its variables."""
    if dry_run.module:
        return runpy.run_module(str(dry_run.script), run_name="__main__", alter_sys=True)
    return runpy.run_path(str(dry_run.script), run_name="__main__")


def _begin(dry_run: DryRun, rank: int, launch: ScriptLaunch) -> AbstractContextManager[None]:
    """Make this process the rank; returns the context that its program runs in."""
    leave_parent()
    _draw_own_numbers(rank)
    program_begins(_run.__code__)
    # The exit functions that any interpreter has, and a rank needs; the last one is called first.
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    log = os.open(dry_run.folder / log_name(rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    with contextlib.suppress(OSError):  # a file system may have no locks
        fcntl.flock(log, fcntl.LOCK_EX)  # held as long as this process, or one that it has started, runs
    for number in (1, 2):
        os.dup2(log, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # ranks side by side cannot share a terminal's input
    set_rank_variables(os.environ, rank, dry_run.world_size, dry_run.local_world_size)
    sys.argv = [str(dry_run.script), *dry_run.arguments]
    sys.path[0] = os.getcwd() if dry_run.module else str(dry_run.script.resolve().parent)
    if dry_run.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (dry_run.memory, dry_run.memory))
    patches = Patches()  # never restored: the process ends as the rank
    files = None if dry_run.files is None else _own_files(dry_run, dry_run.files, rank, patches)
    devices = install_fake_cuda(patches, dry_run.local_world_size) if dry_run.cuda else None
    if devices is not None:
        show_every_gpu()
    enable("record", dry_run.folder, values="off")
    if files is not None:
        files.watch_program()
    use_lazy_shards(patches)
    counter = _counter(patches) if dry_run.counts else None
    inputs = InputsFile(dry_run.folder / inputs_name(rank), dry_run.world_size, dry_run.known)
    of_script = RankOfScript(rank, dry_run.world_size, launch)
    taint = install_fake_distributed(patches, of_script, inputs, counter, files, ends_loops=dry_run.again)
    metadata = StageMetadata(dry_run.folder, rank, lambda other: _is_running(dry_run, other))
    share_stage_metadata(patches, metadata)
    if dry_run.steps is not None:
        _end_after(dry_run.steps)
    return _program_context(dry_run, rank, patches, devices, taint, counter)


def _draw_own_numbers(rank: int) -> None:
    """Give this process random numbers of its own, as a rank of a real job has; a fork would have its parent's.

    They are the same in each pass, and in each dry run.
    """
    seeds = random.Random(rank)  # noqa: S311
    random.seed(seeds.getrandbits(64))
    np.random.seed(seeds.getrandbits(32))
    torch.default_generator.manual_seed(seeds.getrandbits(63))


def _own_files(dry_run: DryRun, sharing: FileSharing, rank: int, patches: Patches) -> SharedFiles:
    """Let this process and those that it starts write to files of their own."""
    sys.dont_write_bytecode = True
    name = journal_name(rank, sharing.run)
    if not sharing.overlays:
        layers = redirect_files(patches, sharing.base / "layers" / name, kept=dry_run.folder.resolve())
        return SharedFiles(sharing, rank, str(sharing.base), layers, None)
    private = mount_privately(sharing.base, name, dry_run.folder.resolve(), sharing.places)
    let_folders_move(patches)
    return SharedFiles(sharing, rank, private.raw, private.layers, private.view)


@contextlib.contextmanager
def _program_context(
    dry_run: DryRun,
    rank: int,
    patches: Patches,
    devices: FakeDevices | None,
    taint: TaintTracker,
    counter: WorkCounter | None,
) -> Iterator[None]:
    with (
        patched_torch(patches, devices, taint, fake_tensors=dry_run.fake_tensors),
        counter or nullcontext(),
    ):
        yield


def _counter(patches: Patches) -> WorkCounter:
    """The counter that writes the computation into this rank's black box."""
    from simcoll.dryrun.rank.flop_counter import WorkCounter

    def write(items: list[Item]) -> None:
        _note(EVENT, items=items)

    return WorkCounter(patches, DeviceOrder(write))


def _note(kind: str, **data: object) -> None:
    """Write an event into this rank's black box, if it has one already."""
    session = active_session()
    if session is not None and (recorder := session.current_recorder()) is not None:
        recorder.event(kind, **data)


def _end_after(steps: int) -> None:
    """End the program with exit code 0 when an optimiser has made so many steps."""
    made: dict[int, int] = {}

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        made[id(optimizer)] = made.get(id(optimizer), 0) + 1
        if made[id(optimizer)] >= steps:
            _note(STEPS_MADE)
            raise SystemExit(0)

    register_optimizer_step_post_hook(count)
