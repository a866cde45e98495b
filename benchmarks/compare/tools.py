"""What a program does under each tool: how its ranks end, how long it takes, and all that the tool prints.

The ranks are forked from an interpreter that has torch already, as torchrun's agent would start them: the first that
fails ends the others. simcoll's modes run under the monitor of ``simcoll run`` with its defaults, and what is judged is
what ``simcoll verify`` then prints as well. Flight Recorder dumps are read by three readers: torchfrtrace as it is; the
same after ``pg_config`` has got the groups and the members that torchfrtrace looks for; ``simcoll verify``.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.programs import Program
from simcoll.launch.monitor import LOOK_SECONDS, Monitor
from tests.support.forked import ForkServer

RANK_PROGRAM = Path(__file__).with_name("rank.py")
GROUP_SECONDS = 10
CUT_OFF_SECONDS = 45
PEER = "torch.distributed.flight_recorder.fr_trace"
COMMAND = Path(__file__).with_name("command.py")
DETAIL = "TORCH_DISTRIBUTED_DEBUG=DETAIL"
RECORDER = "TORCH_FR_BUFFER_SIZE=2000"
SIMCOLL_MODES = ("detail", "check", "record")


@dataclass(frozen=True, slots=True)
class Run:
    """One program under one tool. ``exit_codes`` of its ranks; ``tool_exit`` of the command that judges, if any.

    ``cut_off``: it had to be ended after ``CUT_OFF_SECONDS``.
    """

    tool: str
    program: str
    exit_codes: tuple[int, ...]
    seconds: float
    cut_off: bool
    tool_exit: int | None
    output: str
    judgement: str

    def keep(self, folder: Path) -> None:
        """Write it down for a reader, and to be judged again."""
        path = folder / self.tool.replace(" ", "-") / f"{self.program}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))


def kept(path: Path) -> Run:
    """What :meth:`Run.keep` wrote."""
    fields = json.loads(path.read_text())
    return Run(**fields | {"exit_codes": tuple(fields["exit_codes"])})


class Server(ForkServer):
    """A server that runs a program to its end or to the cut-off, under simcoll's monitor where a mode is given.

    ``seconds``: the time-out of the ranks' groups.
    """

    def __init__(self, seconds: float = GROUP_SECONDS) -> None:
        super().__init__()
        self._seconds = seconds

    def play(self, program: Program, out: Path, *settings: str, mode: str = "") -> tuple[tuple[int, ...], float, str]:
        """The ranks' exit codes, the seconds, and what they and the monitor printed."""
        own = [f"PROGRAM_ARGUMENTS={' '.join(program.arguments)}"] if program.arguments else []
        arguments = [str(self._seconds), str(program.path), *own, *settings]
        self._send(_request(RANK_PROGRAM, arguments, program.ranks, out) | ({"mode": mode} if mode else {}))
        said: list[str] = []
        ended = self._watched(out, said.append) if mode else set()
        answer = self._answer()
        _mark_stopped(out / "launch.json", ended)
        return tuple(answer["exit_codes"]), answer["seconds"], "\n".join([_printed(out), *said])

    def command(self, out: Path, *words: str) -> tuple[int, str]:
        """The exit code of a command, and what it printed."""
        self._send(_request(COMMAND, words, 1, out))
        [code] = self._answer()["exit_codes"]
        return code, _printed(out)

    def _watched(self, out: Path, say: Callable[[str], None]) -> set[int]:
        """Which processes the monitor ended; it looks until the job has ended."""
        assert self._process.stdout is not None
        monitor = Monitor(out, out / "launch.json", time.time_ns(), None, say)
        while not select.select([self._process.stdout], [], [], LOOK_SECONDS)[0]:
            if (out / "launch.json").exists() and monitor.look():
                pids = set(monitor.pids())
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                return pids
        return set()


def _request(script: Path, arguments: Sequence[str], ranks: int, out: Path) -> dict[str, Any]:
    out.mkdir(parents=True)
    about = {"script": str(script), "arguments": [*arguments], "ranks": ranks}
    return about | {"out": str(out), "limit": CUT_OFF_SECONDS}


def _printed(out: Path) -> str:
    path = out / "output.txt"
    return path.read_text(errors="replace") if path.exists() else ""


def _mark_stopped(account: Path, pids: set[int]) -> None:
    document = json.loads(account.read_text())
    for rank in document["ranks"]:
        rank["stopped"] = rank["stopped"] or rank["pid"] in pids
    account.write_text(json.dumps(document))


class Worker:
    """Runs one program at a time, on a server of its own."""

    def __init__(self, folder: Path, seconds: float = GROUP_SECONDS, *, dry: bool = False) -> None:
        self._folder = folder.resolve()
        self._dry = dry
        self._server = Server(seconds)
        self.close = self._server.close

    def runs(self, program: Program) -> Iterator[Run]:
        """The program under every tool."""
        for tool, settings in (("plain", ()), ("DETAIL", (DETAIL,))):
            out = self._out(tool, program)
            codes, seconds, output = self._server.play(program, out, *settings)
            yield self._run(tool, program, codes, seconds, output, None, output)
        yield from self._dumps(program)
        for mode in SIMCOLL_MODES:
            tool, out = f"simcoll {mode}", self._out(f"simcoll {mode}", program)
            codes, seconds, output = self._server.play(program, out, mode=mode)
            tool_exit, judgement = self._server.command(out / "verify", "simcoll", "verify", "--plain", str(out))
            yield self._run(tool, program, codes, seconds, output, tool_exit, output + judgement)

        if self._dry:
            yield self._preflight(program)

    def _preflight(self, program: Program) -> Run:
        """A dry run: no process of the program communicates."""
        tool, began = "simcoll preflight", time.monotonic()
        out = self._out(tool, program)
        words = ["--plain", "--world-size", str(program.ranks), "--device", "cpu", "--out", str(out / "records")]
        words += ["--jobs", "1", str(program.path), *program.arguments]
        code, said = self._server.command(out / "command", "simcoll", "preflight", *words)
        return self._run(tool, program, (), time.monotonic() - began, "", code, said)

    def _dumps(self, program: Program) -> Iterator[Run]:
        dumps = self._out("dumps", program)
        left, mended = dumps / "left", dumps / "mended"
        left.mkdir(parents=True)
        codes, seconds, output = self._server.play(program, dumps / "job", RECORDER, str(left))
        groups: dict[str, list[int]] = {}
        for path in left.glob("groups*.json"):
            groups |= json.loads(path.read_text())
            path.unlink()
        mend(left, mended, {"0": list(range(program.ranks))} | groups)
        readers = {
            "torchfrtrace": (PEER, "--allow-incomplete-ranks", "--print_stack_trace", str(left)),
            "torchfrtrace, mended": (PEER, "--allow-incomplete-ranks", "--print_stack_trace", str(mended)),
            "simcoll verify, dumps": ("simcoll", "verify", "--plain", str(left)),
        }
        for number, (tool, command) in enumerate(readers.items()):
            tool_exit, judgement = self._server.command(dumps / f"reader{number}", *command)
            yield self._run(tool, program, codes, seconds, output, tool_exit, judgement)

    def _run(
        self,
        tool: str,
        program: Program,
        codes: tuple[int, ...],
        seconds: float,
        output: str,
        tool_exit: int | None,
        judgement: str,
    ) -> Run:
        cut_off = seconds >= CUT_OFF_SECONDS
        return Run(tool, program.name, codes, round(seconds, 2), cut_off, tool_exit, output, judgement)

    def _out(self, tool: str, program: Program) -> Path:
        return self._folder / "jobs" / tool.replace(" ", "-") / program.name


def mend(source: Path, target: Path, groups: dict[str, list[int]]) -> None:
    """The same dumps with ``pg_config`` as NCCL's has it: each group of the rank under its name, with its members.

    These are our own ranks' files of this minute, so that unpickling them runs nobody else's code.
    """
    target.mkdir(parents=True)
    dumps = {path.name: pickle.loads(path.read_bytes()) for path in source.glob("dump_rank_*")}
    said = [tuple(entry["process_group"]) for dump in dumps.values() for entry in dump["entries"]]
    about = {"0": "default_pg"} | dict(said) | {name: text for name, text in said if text != "undefined"}
    for name, dump in dumps.items():
        rank = int(name.removeprefix("dump_rank_"))
        dump["pg_config"] = {
            group: {"name": group, "desc": about.get(group, "undefined"), "ranks": str(members)}
            for group, members in groups.items()
            if rank in members
        }
        (target / name).write_bytes(pickle.dumps(dump))
