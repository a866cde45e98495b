"""``simcoll run``: start a job as torchrun does, and report on it when it has ended."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from simcoll.blackbox.accounts import (
    LAUNCH_PATTERN,
    STALL_PATTERN,
    LaunchAccount,
    read_launch,
    read_stalls,
    together,
)
from simcoll.blackbox.file_kinds import DUMPS, is_record_file
from simcoll.blackbox.format import SUFFIX
from simcoll.blackbox.gather import RunRecords, dumps_beside, files_of, gather, matching
from simcoll.blackbox.host_files import HOST_PATTERN, fact_files, job_facts, read_host, write_host
from simcoll.blackbox.stacks import DUMP_SUFFIX, STACK_SUFFIX, TRACEBACK_SUFFIX, remove_unused, stack_path
from simcoll.cli.one_report import alone_in, is_told_already
from simcoll.cli.output import Output
from simcoll.core.clock import now_ns, stated, written_ns
from simcoll.core.io import open_at_once
from simcoll.core.process import signal_name
from simcoll.core.ranges import ranks_text
from simcoll.core.trace import Stall
from simcoll.errors import BAD_INPUT, CANNOT_START, OK
from simcoll.launch.host_watch import HostWatch
from simcoll.launch.monitor import Monitor
from simcoll.launch.nodes.exchange import Exchange
from simcoll.launch.preconditions import PreconditionError, check_request, held, prepare_folder
from simcoll.launch.restarts import BY_CAUSE
from simcoll.launch.supervisor import JobEnd, run_job, with_dumps_in
from simcoll.launch.torchrun_arguments import ProgramKind, RunRequest, RunUsageError, split
from simcoll.recorder.store_hint import OWN_RANKS
from simcoll.verifier.causes.facts import HostFacts, LostNode
from simcoll.verifier.exit_code import exit_code
from simcoll.verifier.findings.finding import Report, Verdict
from simcoll.verifier.postmortem import judge

INTERRUPTED = 128
"""Added to the number of the signal that ended a job in which nothing else was wrong, as shells do."""

_BEGINNING_BYTES = 4096
_OTHER_HOST_GRACE_NS = 300 * 10**9
_OTHER_NODES_SECONDS = 5.0
_OTHER_HOSTS_SECONDS = 2.0
_JUDGING_SECONDS = 15.0
"""Beyond the time after which a job that stands is ended: to take the records of other nodes, and to judge them."""


def run(arguments: Sequence[str]) -> int:
    """Carry out ``simcoll run ARGUMENTS``; the exit code of the contract."""
    output = Output(json="--json" in arguments)
    try:
        request = split(arguments)
        output = Output(json=request.json, plain=request.plain, github=request.github)
        check_request(request)
        if request.mode == "off":
            return _run_plain(request, output)
        folder = prepare_folder(request.out, request.local_ranks)
        # Nodes of one job may share a folder.
        with held(folder) if request.is_alone else contextlib.nullcontext():
            return _run_recorded(request, folder, output)
    except RunUsageError as error:
        return output.refuse(BAD_INPUT, str(error))
    except PreconditionError as error:
        return output.refuse(error.code, str(error))


def _run_plain(request: RunRequest, output: Output) -> int:
    """Mode ``off``: torchrun itself, in this process's place unless a JSON document is to follow it."""
    command = [sys.executable, "-m", "torch.distributed.run", *request.torchrun]
    environment = _environment()
    if not output.json:
        sys.stdout.flush()
        os.execve(sys.executable, command, environment)  # noqa: S606
    code = subprocess.call(command, env=environment, stdout=sys.stderr)
    verdict = Verdict.OK if code == 0 else Verdict.FAILED
    output.show(Report(verdict, 0, request.mode, (), ()))
    return code if code in (OK, BAD_INPUT) else CANNOT_START


def _run_recorded(request: RunRequest, folder: Path, output: Output) -> int:
    alone = request.is_alone
    if alone:
        _remove_results(folder)
    # Nodes may share the folder: each has an account of its own, and another host's clock may be behind.
    result = folder / ("launch.json" if alone else f"launch-{socket.gethostname()}-{os.getpid()}.json")
    host = folder / result.name.replace("launch", "host", 1)
    started_ns = now_ns()
    since_ns = started_ns - (0 if alone else _OTHER_HOST_GRACE_NS)
    arguments = [str(os.getpid()), str(result), request.mode, str(folder)]
    command = [sys.executable, "-m", "simcoll.launch.launcher_process", *arguments, *request.torchrun]
    environment = _environment() | ({} if request.values is None else {"SIMCOLL_VALUES": request.values}) | stated()
    if request.restart_by_cause:
        environment[BY_CAUSE] = "1"
    watch = HostWatch()
    with _nodes(alone, folder) as nodes:
        monitor = Monitor(folder, result, since_ns, request.stall, output.warn, nodes=nodes)
        if nodes is not None:
            # This node's own files have its own clock: with the grace, an earlier run's attempt passed for this one's.
            nodes.watch(result, started_ns, monitor.own_stall)
            environment |= nodes.variables()
        stdout = sys.stderr.fileno() if output.json else None
        end = run_job(command, with_dumps_in(folder, environment), stdout, monitor)
        _keep_facts(host, watch, end)
        return _report(request, folder, output, result, since_ns, monitor, end)


@contextlib.contextmanager
def _nodes(alone: bool, folder: Path) -> Iterator[Exchange | None]:
    """The exchange with nodes that may not share the folder; None where there are none."""
    nodes = None if alone else Exchange.begun(folder)
    try:
        yield nodes
    finally:
        if nodes is not None:
            nodes.close()


def _report(
    request: RunRequest,
    folder: Path,
    output: Output,
    result: Path,
    since_ns: int,
    monitor: Monitor,
    end: JobEnd,
) -> int:
    """Report on a job whose ranks have ended on this node: with the records of other nodes, or to node 0."""
    nodes, alone = monitor.nodes, request.is_alone
    launch = read_launch(result)
    if not launch.ranks and end == JobEnd(0, None):
        # The job must not fail for a report that cannot be written.
        lost = f"simcoll: the job ended well; what was written about it is not in {folder} any more"
        output.say(Report(Verdict.OK, 0, request.mode, (), ()), lost)
        return OK
    if not launch.ranks and end.signal is None:
        return output.refuse(BAD_INPUT if end.exit_code == BAD_INPUT else CANNOT_START, launch.error or _died(end))
    monitor.ended(launch)
    nothing = _why_unrecorded(request, folder, launch, interrupted=end.signal is not None)
    _remove_offers(folder, launch, since_ns, alone=alone)
    if kept := _kept_tracebacks(folder, since_ns):
        output.warn(kept)
    answer = None if nodes is None else nodes.hand_over()
    remarks = [] if nodes is None else _take_over(nodes, monitor, folder, end, since_ns)
    if nodes is not None and (gone := nodes.lost()):
        _keep_lost(result.with_name(result.name.replace("launch", "host", 1)), gone)
    seconds = 0.0 if remarks else _OTHER_NODES_SECONDS
    launches = [launch] if alone else _all_nodes(folder, launch, since_ns, nodes, seconds)
    records = gather([*files_of(folder), *dumps_beside(folder)], launches, since_ns=since_ns)
    # What this node's monitor saw is known also where the disk had no room for it.
    stall = together(filter(None, [monitor.stall, read_stalls(_fresh(folder, STALL_PATTERN, since_ns), records.later)]))
    if not (alone or (nodes is not None and nodes.apart)) and end != JobEnd(0, None):
        _await_facts(folder, len(launches), since_ns)
    facts = job_facts(records.traces, launches, _fresh_facts(folder, since_ns))
    report = judge(records.traces, records.outcome, stall, facts)
    code = exit_code(report, strict=request.strict)
    if launch.node != 0 and (answer is not None or len(records.traces) == launch.world_size):
        # Node 0 has the same files and reports on them all.
        place, code = (str(folder), code) if answer is None else (answer.place, answer.code or code)
        output.say(report, f"simcoll: the report on all ranks is that of node 0, in {place}")
        return code or (OK if end.exit_code == 0 else CANNOT_START)
    if nodes is not None:
        report = replace(report, notes=(*report.notes, *remarks))
        nodes.conclude(code)
        if why := nodes.unreachable():
            output.warn(why)
    with contextlib.nullcontext() if nodes is None else alone_in(folder):
        if nodes is not None and nodes.apart and is_told_already(report, folder, since_ns):
            output.say(report, f"simcoll: the report on these ranks is in {folder} already, by another node")
            return code or (OK if end.exit_code == 0 else CANNOT_START)
        return _conclude(report, records, launch, end, stall, output, folder, nothing, strict=request.strict)


def _kept_tracebacks(folder: Path, since_ns: int) -> str:
    """The line that says which ranks have not printed their error, since another one had; empty where all have."""
    names = [path.name for path in _fresh(folder, f"rank[0-9]*{TRACEBACK_SUFFIX}", since_ns)]
    who = ranks_text(int(name.removeprefix("rank").partition(".")[0]) for name in names)
    if len(names) < 2:
        return f"{who} raised the same error; its traceback is in {folder / names[0]}" if names else ""
    return f"{who} raised the same error; their tracebacks are in {folder}/rank*{TRACEBACK_SUFFIX}"


def _take_over(nodes: Exchange, monitor: Monitor, folder: Path, end: JobEnd, since_ns: int) -> list[str]:
    """At node 0: wait for the records of nodes that do not share the folder; what is to be said of those that lack."""
    patience = monitor.patience if monitor.seconds is None else monitor.seconds
    running = (
        _OTHER_NODES_SECONDS if end.signal is not None or monitor.stall is not None else patience + _JUDGING_SECONDS
    )
    remarks = nodes.take_over(monitor.look, running, lambda: {account.node for account in _accounts(folder, since_ns)})
    for account in nodes.launches():
        monitor.ended(account)
    return remarks


def _keep_facts(path: Path, watch: HostWatch, end: JobEnd) -> None:
    """Save what the host's kernel says of a job that did not end well, beside its records."""
    facts = watch.facts()
    if end != JobEnd(0, None) or facts.kernel or facts.oom_kills:
        with contextlib.suppress(OSError):
            write_host(path, facts)


def _keep_lost(path: Path, lost: tuple[LostNode, ...]) -> None:
    """Add to what this host knows of the job that its launcher lost other nodes."""
    facts = read_host(path) or HostFacts(socket.gethostname())
    with contextlib.suppress(OSError):
        write_host(path, replace(facts, lost=lost))


def _remove_offers(folder: Path, launch: LaunchAccount, since_ns: int, *, alone: bool) -> None:
    """Remove the files into which ranks offered their stacks, and the unused ones beside them: the ranks have ended.

    A launcher within the job has ranks that this one does not know. Where it ended them, they could not do it.
    """
    # Those of another node's ranks may still be asked for.
    for name in ["rank[0-9]*"] if alone else [f"rank{rank.rank:05d}*" for rank in launch.ranks]:
        for path in _fresh(folder, f"{name}{STACK_SUFFIX}", since_ns):
            path.unlink(missing_ok=True)
        for path in _fresh(folder, f"{name}{DUMP_SUFFIX}", since_ns):
            remove_unused(path)


def _fresh(folder: Path, pattern: str, since_ns: int) -> list[Path]:
    return [path for path in matching(folder, pattern) if _changed_ns(path) >= since_ns]


def _changed_ns(path: Path) -> int:
    """The time at which a file was last written (ns), or later where the clock was set back; -1 where it is gone."""
    try:
        return written_ns(path.stat())
    except OSError:
        return -1


def _accounts(folder: Path, since_ns: int) -> list[LaunchAccount]:
    """The accounts of the nodes that share the folder and have started ranks."""
    found = map(read_launch, _fresh(folder, LAUNCH_PATTERN, since_ns))
    return [account for account in found if account.ranks]


def _all_nodes(
    folder: Path, own: LaunchAccount, since_ns: int, nodes: Exchange | None, seconds: float
) -> list[LaunchAccount]:
    """The accounts of all nodes that share the folder, once their ranks have ended too, or after a moment.

    Where the folder is not node 0's, those that are there already.
    """
    if nodes is not None and nodes.apart:
        since_ns, seconds = nodes.begun_ns, 0.0
    deadline = time.monotonic() + seconds
    while True:
        launches = _accounts(folder, since_ns) or [own]
        together = sum(len(launch.ranks) for launch in launches)
        if (together >= own.world_size and all(launch.ended for launch in launches)) or time.monotonic() > deadline:
            return launches
        time.sleep(0.1)


def _fresh_facts(folder: Path, since_ns: int) -> list[Path]:
    return [path for path in fact_files(folder) if _changed_ns(path) >= since_ns]


def _await_facts(folder: Path, nodes: int, since_ns: int) -> None:
    """Wait a moment for what the other nodes' hosts know: they write it when their launchers have ended."""
    deadline = time.monotonic() + _OTHER_HOSTS_SECONDS
    while len(_fresh(folder, HOST_PATTERN, since_ns)) < nodes and time.monotonic() < deadline:
        time.sleep(0.1)


def _conclude(
    report: Report,
    records: RunRecords,
    launch: LaunchAccount,
    end: JobEnd,
    stall: Stall | None,
    output: Output,
    folder: Path,
    nothing: tuple[str, str],
    *,
    strict: bool,
) -> int:
    """Show the report, choose the exit code; ``nothing`` is the line for no group at all."""
    for text in (*records.unreadable, *records.notes, *_remarks(launch, end, stall)):
        output.warn(text)
    output.save(report, folder, records.traces)
    unrecorded = not any(box.groups for box in records.traces)
    if unrecorded and (end.signal is not None or (report.verdict is Verdict.OK and end.exit_code == 0)):
        output.warn(nothing[1])
        output.say(report, f"simcoll: no collective was recorded: {nothing[0]}")
    else:
        output.show(report)
    code = exit_code(report, strict=strict)
    if end.signal is not None and code == OK:
        return INTERRUPTED + end.signal
    return code if code or end.exit_code == 0 else CANNOT_START


def _remarks(launch: LaunchAccount, end: JobEnd, stall: Stall | None) -> list[str]:
    """Returns remarks for the report on the end of the job."""
    remarks = []
    if stall is not None and stall.over:
        remarks.append(f"the job was ended after it had stood still for {stall.seconds:.0f} s")
    elif end.signal is not None:
        remarks.append(f"the job was ended from outside by {signal_name(end.signal)}")
    elif end.exit_code < 0:
        remarks.append(f"{_died(end)}; the ranks that it left were killed")
    elif launch.error:
        remarks.append(launch.error)
    return remarks


def _died(end: JobEnd) -> str:
    if end.exit_code < 0:
        return f"the launcher was killed by {signal_name(-end.exit_code)}"
    return f"the launcher ended with exit code {end.exit_code} before it started a rank; its own message is above"


def _environment() -> dict[str, str]:
    """The launcher's environment, without the variables of simcoll that the launcher sets for the ranks only."""
    return {name: value for name, value in os.environ.items() if name not in ("SIMCOLL_MODE", "SIMCOLL_OUT")}


def _remove_results(folder: Path) -> None:
    """Remove the results of an earlier run from a folder that is given again: they must be the new run's."""
    of_ranks = f"rank*{SUFFIX}", f"rank*{DUMP_SUFFIX}", f"rank*{TRACEBACK_SUFFIX}"
    for pattern in (*of_ranks, LAUNCH_PATTERN, STALL_PATTERN, HOST_PATTERN, "report.json", "report.html"):
        for path in folder.glob(pattern):
            if _is_result(path):
                path.unlink(missing_ok=True)
    for path in folder.glob(f"{DUMPS}*"):
        if is_record_file(path):
            path.unlink(missing_ok=True)


def _is_result(path: Path) -> bool:
    """True if simcoll wrote a file: the folder may hold the user's own of such a name."""
    try:
        with open_at_once(path) as file:
            return b"simcoll" in file.read(_BEGINNING_BYTES).lower()
    except OSError:
        return False


def _why_unrecorded(request: RunRequest, folder: Path, launch: LaunchAccount, *, interrupted: bool) -> tuple[str, str]:
    """The reason, and the advice, for a job none of whose ranks made a process group."""
    # Ranks that loaded simcoll offer stacks from then on, until the files are removed.
    loaded = any(stack_path(folder, rank.rank).exists() for rank in launch.ranks)
    if loaded and interrupted:
        return "no rank got past init_process_group", OWN_RANKS
    if interrupted:
        return "no rank had imported torch yet", "let it run longer, or look at what its ranks do before that import"
    if loaded:
        return (
            "the program created no process group",
            f"it has to call torch.distributed.init_process_group; {OWN_RANKS}",
        )
    if request.kind is ProgramKind.COMMAND:
        where = f"in the Python that {request.program} starts"
        return "no rank imported torch where simcoll is installed", f"install simcoll {where}, next to its torch"
    return "no rank imported torch", "start the program that trains: simcoll records calls of torch.distributed"
