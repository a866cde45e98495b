"""Run programs as torchrun would, from one interpreter that has imported torch already.

Each line on stdin is a request, ``{"script": ..., "arguments": [], "ranks": 4, "out": folder, "limit": seconds,
"mode": "detail"}`` (no mode: without simcoll); each line on stdout answers one, ``{"exit_codes": [...], "seconds":
...}``. The folder gets ``launch.json`` as simcoll's launcher writes it, ``output.txt`` with what the ranks printed, and
the ranks' black boxes. Starting a rank costs milliseconds instead of the seconds that importing torch takes.

A rank is a fork that leaves :func:`serve` and goes on as an interpreter of its own that runs the script: it ends as any
program does, with exception hooks, threads joined, functions of ``atexit`` called and what it has made destroyed. Only
what importing torch had made before the fork is not: that takes longer than most programs. A process of its own holds
the store, as torchrun's agent does. The first rank that fails ends the others with SIGTERM.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import select
import signal
import sys
import time
import types
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from simcoll.autoload import autoload

sys.path[0] = str(Path(__file__).parents[2])  # a rank will have its script's folder there
from tests.support.warm import Modules, collapse_memory, run_to_the_end, settle  # noqa: E402

WARM = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "simcoll.wrapper.hooks",
)
GRACE_MS = 200
"""How long the other ranks have after the first failure; torchrun's agent looks every 100 ms."""

COLLAPSES_AT = 10
"""The request at which the server moves its memory into huge pages, which costs as much as some forks."""

LIBC = ctypes.CDLL(None)


@dataclass
class Rank:
    """One rank's process."""

    rank: int
    pid: int
    handle: int
    exit_code: int | None = None
    ended_ns: int = 0
    stopped: bool = False

    def reap(self, stopped: bool) -> None:
        self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.ended_ns = time.time_ns()
        self.stopped = stopped and self.exit_code < 0
        os.close(self.handle)

    def entry(self) -> dict[str, Any]:
        name = signal.Signals(-self.exit_code).name if self.exit_code is not None and self.exit_code < 0 else None
        return {
            "rank": self.rank,
            "local_rank": self.rank,
            "pid": self.pid,
            "exit_code": self.exit_code,
            "signal": name,
            "ended_ns": self.ended_ns,
            "stopped": self.stopped,
            "message": "",
        }


def serve() -> str:
    """Answer requests; returns in a rank alone, with the script to run."""
    imported = Modules(sys.modules)
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        if number == COLLAPSES_AT:
            collapse_memory()
        began = time.perf_counter()
        port, holder = _host_store()
        ranks = []
        for rank in range(request["ranks"]):
            pid = os.fork()
            if pid == 0:
                _become(rank, request, port, imported)
                sys.argv = [str(request["script"]), *request.get("arguments", ())]
                return str(request["script"])
            ranks.append(Rank(rank, pid, os.pidfd_open(pid)))
        _write_ledger(Path(request["out"]), ranks)
        _watch(ranks, request["limit"])
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        _write_ledger(Path(request["out"]), ranks)
        codes = [rank.exit_code for rank in ranks]
        print(json.dumps({"exit_codes": codes, "seconds": time.perf_counter() - began}), flush=True)
    # Not sys.exit: what was imported to be warm has nothing to clean up here.
    os._exit(0)


def _host_store() -> tuple[int, int]:
    """The port of a store, and the process that holds it: its threads must not be in the process that forks."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(store.port).encode())
        os.close(writer)
        signal.pause()
    os.close(writer)
    with os.fdopen(reader) as stream:
        return int(stream.read()), pid


def _become(rank: int, request: dict[str, Any], port: int, imported: Modules) -> None:
    """Turn this fork into a rank: its environment, its output, its arguments."""
    os.setsid()
    # What is registered first is called last.
    atexit.register(imported.keep)
    # Functions of on_exit are called from the last to the first: what the rank itself makes is destroyed before.
    LIBC.on_exit(LIBC._exit, None)
    world = str(request["ranks"])
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        GROUP_RANK="0",
        ROLE_RANK=str(rank),
        WORLD_SIZE=world,
        LOCAL_WORLD_SIZE=world,
        ROLE_WORLD_SIZE=world,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="programs",
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_USE_AGENT_STORE="True",
        OMP_NUM_THREADS="1",
    )
    # Only here: a session looks for its folder when it begins.
    if "mode" in request:
        os.environ.update(SIMCOLL_MODE=request["mode"], SIMCOLL_OUT=request["out"])
        autoload()
    output = os.open(Path(request["out"]) / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _watch(ranks: list[Rank], limit: float) -> None:
    """Wait for all ranks; the first failure, or the limit, ends them."""
    poll = select.poll()
    for rank in ranks:
        poll.register(rank.handle, select.POLLIN)
    running, deadline, stop = {rank.handle: rank for rank in ranks}, time.monotonic() + limit, signal.SIGTERM
    stopping = False
    while running:
        ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        for handle, _ in ended:
            poll.unregister(handle)
            rank = running.pop(handle)
            rank.reap(stopping)
            if rank.exit_code != 0 and not stopping:
                deadline = min(deadline, time.monotonic() + GRACE_MS / 1000)
        if not ended:
            for rank in running.values():
                signal.pidfd_send_signal(rank.handle, stop)
            stopping, stop, deadline = True, signal.SIGKILL, time.monotonic() + 3


def _write_ledger(out: Path, ranks: list[Rank]) -> None:
    document = {
        "schema": "simcoll.launch/1",
        "host": "localhost",
        "node": 0,
        "world_size": len(ranks),
        "attempt": 0,
        "error": None,
        "interrupted": None,
        "ranks": [rank.entry() for rank in ranks],
    }
    (out / "launch.json").write_text(json.dumps(document))


def run_as_main(script: str) -> None:
    """Execute a script as ``python script`` would."""
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    sys.path[0] = str(Path(script).parent)
    exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)


if __name__ == "__main__":
    for name in WARM:
        import_module(name)
    settle()
    run_to_the_end(functools.partial(run_as_main, serve()))
