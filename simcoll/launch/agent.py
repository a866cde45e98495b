"""Starts the ranks of a job with torchrun's own parser and agent, and writes down the end of each.

It is a process of its own (:mod:`simcoll.launch.launcher_process`), so that the command that watches it needs no torch
and survives it. The ranks run unchanged: torch's agent starts them as torchrun does. The
account (:mod:`simcoll.blackbox.accounts`) is rewritten whole whenever a rank starts or ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server import WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.launcher import api

from simcoll.autoload import autoload
from simcoll.blackbox.accounts import LAUNCH_SCHEMA
from simcoll.core.clock import now_ns
from simcoll.core.io import printable
from simcoll.core.process import signal_name
from simcoll.launch.nodes.meeting import Greeter, from_variable
from simcoll.launch.torchrun_arguments import nearest_option
from simcoll.recorder.told_once import ToldErrors

if TYPE_CHECKING:
    from simcoll.launch.restarts import RestartByCause

_SETTLE_SECONDS = 2.0
_ENDING = frozenset({-signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT})


class Ledger:
    """The account of how the ranks of this node ended, kept up to date on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._closing = False
        self._unwritten = False
        self._watchers: list[threading.Thread] = []
        self._told = ToldErrors()
        self._document: dict[str, Any] = {
            "schema": LAUNCH_SCHEMA,
            "host": socket.gethostname(),
            "node": 0,
            "world_size": 0,
            "attempt": 0,
            "error": None,
            "interrupted": None,
            "pid": os.getpid(),
            "over": False,
            "ranks": [],
        }

    def say(self, **values: object) -> None:
        """Set top-level values and write the file."""
        with self._lock:
            self._document.update(values)
            self._write()

    def starting(self) -> None:
        """The agent starts its workers next."""
        self._told.begin()

    def start(self, workers: list[dict[str, Any]], **values: object) -> None:
        """The agent has started its workers, for the first time or again: the ranks of an earlier attempt are gone."""
        self._closing = False
        self.say(ranks=[{**worker, **_RUNNING} for worker in workers], **values)
        self._watchers = [
            threading.Thread(target=self._watch, args=(entry,), daemon=True) for entry in self._document["ranks"]
        ]
        for watcher in self._watchers:
            watcher.start()

    def closing(self, exit_codes: dict[int, int]) -> None:
        """The agent ends its workers now: a signal from here on is the agent's.

        Those that have ended by then did so by themselves, whether their watchers have come to it or not: the agent has
        reaped some, by local rank ``exit_codes``.
        """
        self.reaped(exit_codes)
        for entry in self._document["ranks"]:
            if entry["exit_code"] is None:
                self._look(entry, os.WNOHANG)
        self._closing = True

    def ended(self, entry: dict[str, Any], exit_code: int) -> None:
        """A rank's process has ended; the first word on it counts."""
        with self._lock:
            if entry["exit_code"] is not None:
                return
            entry["exit_code"] = exit_code
            entry["signal"] = signal_name(-exit_code) if exit_code < 0 else None
            entry["ended_ns"] = now_ns()
            entry["stopped"] = self._closing and exit_code in _ENDING
            self._write()

    def failed(self, failures: dict[int, Any]) -> None:
        """Records torch's report on failed ranks: exit codes that no watcher saw, and error messages."""
        by_rank = {entry["rank"]: entry for entry in self._document["ranks"]}
        for rank, failure in failures.items():
            entry = by_rank.get(rank)
            if entry is None:
                continue
            self.ended(entry, int(failure.exitcode))
            entry["message"] = _message(failure)
        self.say()

    @property
    def started(self) -> bool:
        """True if the agent has started ranks."""
        return bool(self._document["ranks"])

    def reaped(self, exit_codes: dict[int, int]) -> None:
        """Records exit codes, by local rank, of processes that the agent reaped before their watchers looked."""
        for entry in self._document["ranks"]:
            if (code := exit_codes.get(entry["local_rank"])) is not None:
                self.ended(entry, code)

    def await_ends(self) -> None:
        """Wait for the reports of the last watchers: the agent has ended its workers."""
        for watcher in self._watchers:
            watcher.join(_SETTLE_SECONDS)

    def settle(self) -> None:
        """The agent has ended: wait for the reports of the last watchers.

        torch names every rank that did not return zero, so a process that is gone and was not named returned zero; if
        the job was interrupted, torch names none.
        """
        self.await_ends()
        self._told.end()
        unseen = -signal.SIGTERM if self._document["interrupted"] else 0
        for entry in self._document["ranks"]:
            if entry["exit_code"] is None and not Path(f"/proc/{entry['pid']}").exists():
                self.ended(entry, unseen)
        self.say(over=True)

    def _watch(self, entry: dict[str, Any]) -> None:
        """Wait for one rank's end."""
        self._look(entry, 0)

    def _look(self, entry: dict[str, Any], how: int) -> None:
        """Look for one rank's end without reaping it, which is its agent's part."""
        try:
            info = os.waitid(os.P_PID, entry["pid"], os.WEXITED | os.WNOWAIT | how)
        except ChildProcessError:
            return
        if info is not None:
            self.ended(entry, info.si_status if info.si_code == os.CLD_EXITED else -info.si_status)

    def _write(self) -> None:
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        text = json.dumps(self._document)
        try:
            draft.write_text(text.ljust(2 * len(text) + _ROOM), encoding="utf-8")
            draft.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            # A disk that filled up may cost the account of the ranks, never the job.
            if self._unwritten or _written_over(self._path, text):
                return
            self._unwritten = True
            print(f"simcoll: cannot write {self._path}: {error.strerror}", file=sys.stderr)  # noqa: T201


_ROOM = 2048
"""Blanks at the end of the account, beside as many as it has characters: how the ranks ended finds room there where the
disk has none.
"""


def _written_over(path: Path, text: str) -> bool:
    """True if the text has found room in the file as it is."""
    try:
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            return len(text) <= size and file.write(text.encode().ljust(size)) == size
    except OSError:
        return False


_RUNNING: dict[str, Any] = {"exit_code": None, "signal": None, "ended_ns": 0, "stopped": False, "message": ""}


def observed_agent(
    ledger: Ledger, restarts: RestartByCause | None = None, greeter: Greeter | None = None
) -> type[LocalElasticAgent]:
    """The agent of torch, which also tells the ledger when it starts and when it ends its workers.

    Before it restarts workers that failed, it asks ``restarts``; in the store of its rendezvous ``greeter`` meets those
    of other nodes: where they are given.
    """

    class ObservedAgent(LocalElasticAgent):
        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            failed = result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY)
            if restarts is not None and failed and self._remaining_restarts > 0:
                # Their records are complete when all have ended; torch would end them next, too.
                self._stop_workers(worker_group)
                ledger.await_ends()
                if restarts.forbids():
                    self._remaining_restarts = 0
                else:
                    restarts.begin()
            return result

        def _assign_worker_ranks(self, store: Any, group_rank: int, *others: Any, **more: Any) -> list[Any]:
            if greeter is not None and group_rank == 0:
                # The other nodes wait here for what this one assigns.
                greeter.is_node_0(store)
            workers: list[Any] = super()._assign_worker_ranks(store, group_rank, *others, **more)
            return workers

        def _start_workers(self, worker_group: Any) -> dict[int, Any]:
            nodes = worker_group.group_world_size
            if greeter is not None and nodes > 1:
                greeter.meet(worker_group.store, worker_group.group_rank, nodes, worker_group.master_addr)
            ledger.starting()
            pids: dict[int, Any] = super()._start_workers(worker_group)
            workers = [
                {"rank": worker.global_rank, "local_rank": worker.local_rank, "pid": pids[worker.local_rank]}
                for worker in worker_group.workers
            ]
            _observe_close(self._pcontext, ledger)
            ledger.start(
                workers,
                node=worker_group.group_rank,
                world_size=worker_group.workers[0].world_size,
                attempt=worker_group.spec.max_restarts - self._remaining_restarts,
            )
            return pids

    return ObservedAgent


def _observe_close(context: Any, ledger: Ledger) -> None:
    close = context.close

    def observed(*arguments: Any, **options: Any) -> None:
        ledger.closing(_exit_codes(context))
        try:
            close(*arguments, **options)
        finally:
            ledger.reaped(_exit_codes(context))

    context.close = observed


def _exit_codes(context: Any) -> dict[int, int]:
    """The exit codes that torch's own context knows, by local rank; it reaps the processes that it closes."""
    codes = {rank: handler.proc.returncode for rank, handler in getattr(context, "subprocess_handlers", {}).items()}
    started = getattr(context, "_pc", None)
    if started is not None:
        codes |= {rank: process.exitcode for rank, process in enumerate(started.processes)}
    return {rank: code for rank, code in codes.items() if code is not None}


def launch(
    ledger: Ledger,
    arguments: list[str],
    restarts: RestartByCause | None = None,
    greeter: Greeter | None = None,
) -> int:
    """Run a job to its end; 0 if every rank of this node returned zero, 2 for wrong arguments, else 1."""
    try:
        options = _parser().parse_args(arguments)
        _quieten()
        _take_free_port(options)
        if options.run_path and options.start_method == "fork":
            # These ranks never import torch anew, so that its hook does not run in them.
            autoload()
        setattr(api, "LocalElasticAgent", observed_agent(ledger, restarts, greeter))  # noqa: B010
        record(torchrun.run)(options)
    except ChildFailedError as error:
        ledger.failed(error.failures)
        return 1
    except SignalException as error:
        ledger.say(interrupted=signal.Signals(error.sigval).name)
        return 1
    except KeyboardInterrupt:
        ledger.say(interrupted="SIGINT")
        return 1
    except _TorchrunArgumentsError as error:
        ledger.say(error=str(error))
        return 2
    except Exception as error:
        ledger.say(error=f"torchrun: {type(error).__name__}: {str(error) or 'it gives no reason; see torchrun --help'}")
        return 2 if isinstance(error, ValueError | AssertionError) and not ledger.started else 1
    finally:
        ledger.settle()
    return 0


class _TorchrunArgumentsError(Exception):
    """The arguments are not torchrun's."""


def _parser() -> argparse.ArgumentParser:
    parser = torchrun.get_args_parser()

    def refuse(message: str) -> NoReturn:
        _, _, unknown = message.partition("unrecognized arguments: ")
        meant = nearest_option(unknown.partition(" ")[0]) if unknown else ""
        raise _TorchrunArgumentsError(f"{message}, expected {meant}" if meant else message)

    setattr(parser, "error", refuse)  # noqa: B010
    return parser


def _take_free_port(options: argparse.Namespace) -> None:
    """Let ranks of one node meet at a port that is free, unless the user has said where: 29500 may be another job's."""
    # On all interfaces, as the store listens: whether the master's address is one of them is for torchrun to find out.
    said = options.standalone or options.master_port is not None or options.rdzv_endpoint
    if said or options.rdzv_backend != "static" or options.nnodes not in ("1", "1:1"):
        return
    with contextlib.closing(socket.create_server(("", 0))) as door:
        options.master_port = door.getsockname()[1]


def _quieten() -> None:
    """Keep the agent's own log off the screen, where it would bury the report; LOGLEVEL brings it back."""
    if "LOGLEVEL" in os.environ:
        return
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.run", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _message(failure: Any) -> str:
    """The message of torch's error file, where the rank wrote one (``@record``); else nothing."""
    if failure.error_file_data.get("message") in (None, "<NONE>"):
        return ""
    message = failure.message
    return str(message.get("message", "")) if isinstance(message, dict) else str(message)


def main(arguments: Sequence[str]) -> int:
    """Arguments are RESULT (the account's file), MODE, OUT and torchrun's; returns the exit code of :func:`launch`."""
    result, mode, out, *torchrun_arguments = arguments
    # Sent to a whole job it is for the ranks; a handler, as they would inherit an ignored signal.
    signal.signal(signal.SIGUSR1, lambda number, frame: None)
    # For the ranks alone: torch has been imported here without them, so that this process is not recorded.
    os.environ.update(SIMCOLL_MODE=mode, SIMCOLL_OUT=out, SIMCOLL_STACKS=out, TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    door = from_variable(os.environ)
    greeter = None if door is None else Greeter(Path(out), door)
    return launch(Ledger(Path(result)), torchrun_arguments, _restarts(Path(out)), greeter)


def _restarts(folder: Path) -> RestartByCause | None:
    """The judge of restarts; None where none is asked for, which need not wait for the modules that judge."""
    if "SIMCOLL_RESTART_BY_CAUSE" not in os.environ:
        return None
    from simcoll.launch.restarts import BY_CAUSE, RestartByCause

    del os.environ[BY_CAUSE]
    return RestartByCause(folder, lambda line: print(f"simcoll: {printable(line)}", file=sys.stderr, flush=True))  # noqa: T201
