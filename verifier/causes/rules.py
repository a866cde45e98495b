"""The rules by which a cause is found, in the order in which they are believed; docs/causes.md is written from them.

A rule sees the verdict and what is known of the job's hosts, and gives suspicions. The first one of the first rule that
gives any is believed; those with evidence of their own are told beside it. Weak evidence never decides on a restart:
only strong evidence says ``no`` or ``without hosts``, and ``yes`` is said only where nothing of the job is
known to be at fault.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from simcoll.core.device_errors import DeviceError
from simcoll.core.process import signal_name
from simcoll.core.ranges import ranks_text
from simcoll.core.record import text
from simcoll.verifier.causes.exceptions import told
from simcoll.verifier.causes.facts import HostFacts, KernelEvent, KernelEventKind, LostNode
from simcoll.verifier.causes.situation import Situation
from simcoll.verifier.causes.xids import XIDS, XidClass
from simcoll.verifier.findings.causes import Cause, Evidence, Restart, Strength, Suspicion
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import (
    BUFFER_CHANGED,
    BUFFERS_OVERLAP,
    CALL_SKIPPED,
    DDP_PARAMETER_MISMATCH,
    DEADLOCK_CYCLE,
    INVALID_ARGUMENT,
    MEMBERSHIP_MISMATCH,
    MISSING_RANK,
    NON_FINITE_INPUT,
    NON_MEMBER_CALL,
    ORDER_SWAPPED,
    PARAMETERS_DRIFTED,
    RANK_EXITED_EARLY,
    RANK_FAILED,
    REPLICAS_DIFFER,
    RULES,
    WORK_NEVER_WAITED,
    WRONG_RESULT,
)
from simcoll.verifier.halts.failures import Failure, Nature

_PROVED: Final = frozenset(
    {
        *(code for code in RULES if code.startswith(("SC1", "SC3"))),
        *(
            rule.code
            for rule in (
                ORDER_SWAPPED,
                DEADLOCK_CYCLE,
                MEMBERSHIP_MISMATCH,
                NON_MEMBER_CALL,
                WORK_NEVER_WAITED,
                BUFFER_CHANGED,
                BUFFERS_OVERLAP,
                DDP_PARAMETER_MISMATCH,
                INVALID_ARGUMENT,
            )
        ),
    }
)
_RESULTS: Final = frozenset({REPLICAS_DIFFER.code, WRONG_RESULT.code})
_OWN_VALUES: Final = frozenset({NON_FINITE_INPUT.code, PARAMETERS_DRIFTED.code})
_CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS})
_NEAR_NS: Final = 5_000_000_000
"""So much earlier than its launcher a kernel may tell of a process's end."""
_MOST: Final = 4
"""So many lines of a log, or ranks, are quoted."""


Find: TypeAlias = Callable[[Situation], list[Suspicion]]


@dataclass(frozen=True, slots=True)
class CauseRule:
    """A rule: its ``name``, and the function that finds the cause, whose docstring is its row in the docs.

    What it finds is told ``beside`` the cause that is believed, where that is another one.
    """

    name: str
    find: Find
    beside: bool = False


def _proved_by_calls(at: Situation) -> list[Suspicion]:
    """The first finding is a proved disagreement of the ranks' calls, a deadlock, a refused call or a misuse of memory
    in flight: program, strong, restart no.

    SC1xx, SC203, SC204, SC3xx, SC401, SC402, SC501 to SC504, SC601.
    """
    if at.first is None or at.first.code not in _PROVED:
        return []
    return [_by(at, "calls disagree", Cause.PROGRAM, Strength.STRONG, Restart.NO, [_finding(at.first)], at.suspects)]


def _hardware(at: Situation) -> list[Suspicion]:
    """The kernel log of a host tells of a fault of a GPU, a link or memory: an Xid for which NVIDIA's catalogue says to
    reset the GPU or restart the machine, a fatal error of NVLink or NVSwitch, an uncorrected error of memory. The line
    is from the time of the job, and that host has a rank that failed first or is missing: machine, strong, restart
    without that host. After Xid 94 alone, a contained memory error: restart yes, as the catalogue says.
    """
    return [one for one in _faulty_hosts(at) if one.strength is Strength.STRONG]


def _other_hardware(at: Situation) -> list[Suspicion]:
    """As "hardware fault", but the line has no time, or the host has no rank that failed first or is missing: machine,
    weak.
    """
    return [one for one in _faulty_hosts(at) if one.strength is Strength.WEAK]


def _faulty_hosts(at: Situation) -> list[Suspicion]:
    return [found for host in at.facts.by_host if (found := _faulty(at, host)) is not None]


def _faulty(at: Situation, host: HostFacts) -> Suspicion | None:
    faults = [(event, said) for event in host.kernel if (said := _fault(event))]
    if not faults:
        return None
    mine = at.facts.ranks_on(host.host)
    named = (at.facts.of_pid(host.host, event.pid) for event, _ in faults)
    concerned = {rank for rank in at.suspects if rank in mine} | {rank for rank in named if rank is not None}
    strong = bool(concerned) and any(event.time_ns for event, _ in faults)
    contained = all(event.number == _CONTAINED for event, _ in faults)
    helps = Restart.UNKNOWN if not strong else Restart.YES if contained else Restart.WITHOUT_HOSTS
    return Suspicion(
        "hardware fault" if strong else "other hardware fault",
        Cause.MACHINE,
        Strength.STRONG if strong else Strength.WEAK,
        helps,
        (*(Evidence(_log_of(host), f"{said}: {event.text}") for event, said in faults[:_MOST]), *_seen(at)),
        tuple(sorted(concerned)),
        (host.host,) if host.host else (),
    )


_CONTAINED: Final = 94


def _fault(event: KernelEvent) -> str:
    """The fault of the machine that a line tells of, in words; empty where it is none."""
    if event.kind is KernelEventKind.MEMORY_ERROR:
        return "an uncorrected memory error"
    if event.kind is KernelEventKind.SWITCH:
        return "a fatal error of NVSwitch" if event.fatal else ""
    if event.kind is not KernelEventKind.XID or event.number not in XIDS:
        return ""
    kind, name = XIDS[event.number]
    linked = kind is XidClass.LINK and (event.fatal or event.number == _NVLINK)
    return f"Xid {event.number}, {name}" if kind in (XidClass.MACHINE, XidClass.CONTAINED) or linked else ""


_NVLINK: Final = 74
"""The lines of this Xid state no severity."""


def _killed_for_memory(at: Situation) -> list[Suspicion]:
    """The kernel ended a rank (SIGKILL, also exit code 137), or a worker of its DataLoader, because memory had run out,
    as its log or the count of kills in the memory cgroup shows. The limit of a cgroup was reached, by the kernel's log
    or the cgroup's own count: program, strong, restart no. The host had no memory left, whoever used it: machine, weak.
    Where it is not known which of the two it was: program, weak.
    """
    found = []
    for failure in (*_by_signal(at, signal.SIGKILL), *(one for one in at.own.values() if _WORKER.search(one.message))):
        host = at.host(at.facts.hosts.get(failure.rank, ""))
        kills = [one for one in host.kernel if one.kind is KernelEventKind.OUT_OF_MEMORY]
        mine = [one for one in kills if one.pid == at.facts.pids.get(failure.rank) or _near(one, failure)]
        evidence = [Evidence(_log_of(host), one.text) for one in mine[:_MOST]]
        if host.oom_kills:
            evidence.append(
                Evidence(f"memory cgroup of {host.host}", f"{host.oom_kills} killed in it for want of memory")
            )
        if not evidence:
            continue
        about = _NO_ROOM if _whole_host(mine) else _OWN_LIMIT if _limited(host, mine) else _SOME_LIMIT
        found.append(_by(at, "killed for memory", *about, [*evidence, _ended(at, failure)], [failure.rank]))
    return found[:1]


_WORKER = re.compile(r"DataLoader worker \(pid.{1,80} (?:is killed by signal: Killed|exited unexpectedly)")
"""The texts with which a DataLoader tells that a worker of it was killed (torch/utils/data/dataloader.py,
torch/csrc/DataLoader.cpp)."""

_NO_ROOM: Final = (Cause.MACHINE, Strength.WEAK, Restart.UNKNOWN)
_OWN_LIMIT: Final = (Cause.PROGRAM, Strength.STRONG, Restart.NO)
_SOME_LIMIT: Final = (Cause.PROGRAM, Strength.WEAK, Restart.UNKNOWN)
"""A cgroup also counts kills of its processes for which the host as a whole had no memory left."""


def _whole_host(kills: Sequence[KernelEvent]) -> bool:
    return any(not one.limited for one in kills)


def _limited(host: HostFacts, kills: Sequence[KernelEvent]) -> bool:
    return bool(host.limit_hits) or any(one.limited for one in kills)


def _near(event: KernelEvent, failure: Failure) -> bool:
    """True if a kill was at the time of a failure: a container numbers its processes in its own way."""
    return bool(event.time_ns) and 0 <= failure.time_ns - event.time_ns <= _NEAR_NS


def _device_errors(at: Situation) -> list[Suspicion]:
    """A rank failed with an error of its device. Uncorrectable ECC or NVLink errors, a GPU that is lost: machine,
    strong, restart without that host. No memory left on the device: program, strong, restart no. An illegal access or
    an assertion in a kernel: program, weak.
    """
    for failure in at.own.values():
        if failure.device_error in _DEVICE:
            evidence = [_ended(at, failure), *_log_of_work(at, failure)]
            return [_by(at, "device error", *_DEVICE[failure.device_error], evidence, [failure.rank])]
    return []


_DEVICE: Final = {
    DeviceError.HARDWARE: (Cause.MACHINE, Strength.STRONG, Restart.WITHOUT_HOSTS),
    DeviceError.MEMORY: (Cause.PROGRAM, Strength.STRONG, Restart.NO),
    DeviceError.EARLIER: (Cause.PROGRAM, Strength.WEAK, Restart.UNKNOWN),
}


def _log_of_work(at: Situation, failure: Failure) -> list[Evidence]:
    """The Xids on a rank's host that follow from the work that the program gave to a GPU."""
    host = at.host(at.facts.hosts.get(failure.rank, ""))
    xids = [
        one
        for one in host.kernel
        if one.kind is KernelEventKind.XID and XIDS.get(one.number, _NONE)[0] is XidClass.WORK
    ]
    return [Evidence(_log_of(host), f"Xid {one.number}, {XIDS[one.number][1]}: {one.text}") for one in xids[:1]]


_NONE: Final = (None, "")


def _told_by_exceptions(at: Situation) -> list[Suspicion]:
    """The exception that ended a rank names the cause by its type or text. EIO, EROFS: machine, restart without that
    host; ENOSPC, EDQUOT: machine, restart no (all strong). No route to a host: network, strong; other lost connections:
    network, weak. No memory on the host: program, strong, restart no. NameError, TypeError and the like: program,
    strong, restart no. The text of one of these errors of the system without its number, as a program may quote it:
    weak. A worker of a DataLoader that SIGBUS ended, most likely for want of room in /dev/shm: machine, weak.
    """
    for failure in at.own.values():
        if failure.device_error in (None, DeviceError.SYSTEM) and (says := told(failure.type, failure.message)):
            about = says.cause, says.strength, says.restart
            evidence = [_ended(at, failure), Evidence("exception", says.why)]
            return [_by(at, "told by the exception", *about, evidence, at.own)]
    return []


def _alike_on_all(at: Situation) -> list[Suspicion]:
    """All ranks of the job, two or more, failed alike: program, strong, restart no. An exception about a connection, a
    time limit or a service that all use may pass: unknown, weak.
    """
    ranks, first = tuple(at.own), next(iter(at.own.values()), None)
    if first is None or len(ranks) < 2 or len(ranks) < at.world_size or at.signal_of(first) in _FROM_OUTSIDE:
        return []
    evidence = [_ended(at, first), Evidence("exits", f"all {len(ranks)} ranks failed so")]
    outside = _SERVICES.search(first.type) is not None
    about = _OPEN if outside else (Cause.PROGRAM, Strength.STRONG, Restart.NO)
    return [_by(at, "alike on all ranks", *about, evidence, ranks)]


_SERVICES = re.compile(r"Connection|Timeout|HTTP|URLError|SSL|gaierror|^OSError$|^ClientError$")
"""Types of exceptions about what lies outside of the program, such as a store of data that all ranks read."""

_OPEN: Final = (Cause.UNKNOWN, Strength.WEAK, Restart.UNKNOWN)
_FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT})


def _crashed(at: Situation) -> list[Suspicion]:
    """SIGSEGV, SIGILL, SIGFPE, SIGABRT or SIGBUS (also as exit code 128 plus the signal's number) ended a rank, so
    native code of that rank failed: rank, weak. SIGBUS also comes when a file in memory, such as one in /dev/shm, has
    no room left.
    """
    for failure in at.own.values():
        if (number := at.signal_of(failure)) in _CRASHES:
            evidence = [_ended(at, failure), *([_ROOM] if number == signal.SIGBUS else [])]
            return [_by(at, "crash", Cause.RANK, Strength.WEAK, Restart.UNKNOWN, evidence, at.own)]
    return []


_ROOM: Final = Evidence(
    "signal", "SIGBUS also comes when files in memory (/dev/shm) have no room left: df /dev/shm tells"
)


def _ended_from_outside(at: Situation) -> list[Suspicion]:
    """SIGKILL or SIGTERM ended a rank, and the sender is not known: unknown, weak. Restart yes if it is known that the
    kernel killed nothing for lack of memory: nothing of the job was at fault.
    """
    for failure in _by_signal(at, signal.SIGKILL, signal.SIGTERM):
        host = at.host(at.facts.hosts.get(failure.rank, ""))
        ruled_out = host.oom_kills == 0 and not any(one.kind is KernelEventKind.OUT_OF_MEMORY for one in host.kernel)
        evidence = [_ended(at, failure)]
        if ruled_out:
            evidence.append(Evidence(f"memory cgroup of {host.host}", "nothing was killed in it for want of memory"))
        asked = at.signal_of(failure) == signal.SIGTERM
        helps = Restart.YES if ruled_out or asked else Restart.UNKNOWN
        return [_by(at, "ended from outside", Cause.UNKNOWN, Strength.WEAK, helps, evidence, [failure.rank])]
    return []


def _alone(at: Situation) -> list[Suspicion]:
    """Some ranks failed with an exception or exit code that others did not meet: rank, weak; whether it would fail
    again depends on that rank's data. In a job of one rank: program, weak.
    """
    own = [one for one in at.own.values() if not at.signal_of(one)]
    if not own or len(own) >= at.world_size > 1:
        return []
    cause = Cause.RANK if at.world_size > 1 else Cause.PROGRAM
    evidence = [_ended(at, own[0]), Evidence("exits", f"{len(own)} of {at.world_size} ranks failed so")]
    return [_by(at, "failed alone", cause, Strength.WEAK, Restart.UNKNOWN, evidence, [one.rank for one in own])]


def _stopped(at: Situation) -> list[Suspicion]:
    """The monitor saw that a signal (SIGSTOP, SIGTSTP, a debugger) had stopped the process of a missing rank: rank,
    strong, restart yes.
    """
    stopped = frozenset() if at.job.stall is None else at.job.stall.stopped
    ranks = [rank for rank in at.suspects if rank in stopped]
    if not ranks or at.first is None:
        return []
    evidence = [_finding(at.first), Evidence("monitor", f"the process of {ranks_text(ranks)} is stopped by a signal")]
    return [_by(at, "stopped process", Cause.RANK, Strength.STRONG, Restart.YES, evidence, ranks)]


def _ras(at: Situation) -> list[Suspicion]:
    """NCCL's RAS lists ranks of a communicator as unresponsive or dead. All ranks of one address are missing while
    others answered: machine, weak; otherwise rank, weak. A rank whose asynchronous error is ncclRemoteError: network,
    weak.
    """
    missing = [one for one in at.facts.ras if one.missing and (one.unresponsive or one.dead)]
    found = []
    if missing:
        answered = {one.host for one in at.facts.ras if not one.missing}
        away = {one.host for one in missing} - answered
        cause = Cause.MACHINE if away and answered else Cause.RANK
        evidence = [Evidence("NCCL RAS", _ras_text(one.host, one.pid, dead=one.dead)) for one in missing[:_MOST]]
        # Containers number their processes alike: a number that several ranks have names none of them.
        by_pid: dict[int, list[int]] = {}
        for rank, pid in at.facts.pids.items():
            by_pid.setdefault(pid, []).append(rank)
        ranks = [known[0] for one in missing if len(known := by_pid.get(one.pid, [])) == 1]
        found.append(_by(at, "missing in RAS", cause, Strength.WEAK, Restart.UNKNOWN, evidence, sorted(set(ranks))))
    if remote := [one for one in at.facts.ras if one.error == _REMOTE_ERROR]:
        evidence = [
            Evidence("NCCL RAS", f"process {one.pid} on {one.host} has the asynchronous error ncclRemoteError")
            for one in remote[:_MOST]
        ]
        found.append(_by(at, "missing in RAS", Cause.NETWORK, Strength.WEAK, Restart.UNKNOWN, evidence, ()))
    return found


_REMOTE_ERROR: Final = 6


def _ras_text(host: str, pid: int, *, dead: bool) -> str:
    return f"process {pid} on {host} is {'considered dead' if dead else 'unresponsive'}"


def _lost_nodes(at: Situation) -> list[Suspicion]:
    """Nodes that share no folder lost each other while the job ran, and no ranks are missing (SC201) but those of the
    lost node, or ranks failed because they lost others, and none by itself. Nothing came from the node any more:
    network, weak, as a machine without power is silent too. Its system closed the connection, so that the network was
    there: machine, weak.
    """
    lost = [(host.host, one) for host in at.facts.by_host for one in host.lost]
    if not lost or at.first is None:
        return []
    away = {rank for _, one in lost for rank in one.ranks}
    unseen = at.world_size > len(at.job.traces)
    missing = at.first.code == MISSING_RANK.code and away.issuperset(at.suspects) and (unseen or bool(at.suspects))
    natures = {one.nature for one in at.job.failures.values()}
    parted = at.first.code == RANK_FAILED.code and Nature.OWN not in natures
    if not missing and not (parted and natures & {Nature.CONNECTION, Nature.MISSING}):
        return []
    machine = all(one.closed for _, one in lost)
    evidence = [Evidence(f"launcher on {witness}", _lost_text(one)) for witness, one in lost[:_MOST]]
    return [
        Suspicion(
            "lost node",
            Cause.MACHINE if machine else Cause.NETWORK,
            Strength.WEAK,
            Restart.UNKNOWN,
            (*evidence, *_seen(at)),
            tuple(sorted(away)),
            tuple(sorted({one.host for _, one in lost if one.host})) if machine else (),
        )
    ]


def _lost_text(one: LostNode) -> str:
    name = f"node {one.number}" + (f" ({one.host})" if one.host else "")
    if one.closed:
        return f"{name} closed its connection before the job ended, and did not come back"
    return f"nothing came from {name} any more for {one.seconds:.0f} s"


def _lost_connections(at: Situation) -> list[Suspicion]:
    """Ranks failed because they lost a connection, and none failed by itself. Where the ends of all ranks are known and
    they ran on several hosts: network, strong, restart yes (unknown where no route to a host was left); otherwise
    network, weak.
    """
    if at.first is None or at.first.code != RANK_FAILED.code or at.own:
        return []
    lost = [one for one in at.job.failures.values() if one.nature is Nature.CONNECTION]
    if not lost or any(one.nature is Nature.OWN for one in at.job.failures.values()):
        return []
    hosts = at.facts.hosts_of(at.facts.hosts)
    known = len(at.job.launched) >= at.world_size
    strong = known and len(hosts) > 1
    evidence = [_ended(at, one) for one in lost[:2]]
    evidence.append(
        Evidence("exits", f"no rank failed by itself; the ends of {'all' if known else 'not all'} ranks are known")
    )
    no_route = any(_NO_ROUTE.search(one.message) for one in lost)
    helps = Restart.YES if strong and not no_route else Restart.UNKNOWN
    about = Strength.STRONG if strong else Strength.WEAK, helps
    return [_by(at, "lost connections", Cause.NETWORK, *about, evidence, [one.rank for one in lost])]


_NO_ROUTE = re.compile("No route to host|Network is unreachable")


def _wrong_values(at: Situation) -> list[Suspicion]:
    """SC902 or SC903 names one rank whose result differs while its calls agree: machine of that rank, weak, as silent
    corruption is likely if the program does not write there. SC901, the first NaN, and SC904, weights that drift apart:
    rank, weak.
    """
    if at.first is None:
        return []
    if at.first.code in _RESULTS and len(at.first.culprits) == 1:
        return [_weak(at, "wrong values", Cause.MACHINE)]
    return [_weak(at, "wrong values", Cause.RANK)] if at.first.code in _OWN_VALUES and at.first.culprits else []


def _skipped_after_exception(at: Situation) -> list[Suspicion]:
    """SC202 or SC201, and the ranks parted because some of them handled an exception: the cause that this exception
    names, or else rank; weak.
    """
    if at.first is None or at.first.code not in (CALL_SKIPPED.code, MISSING_RANK.code) or at.first.parted is None:
        return []
    parted = at.first.parted
    for rank in parted.sides[0][0] if parted.sides else ():
        for event in reversed(at.job.events(rank, "handling")):
            kind, message = text(event, "type"), text(event, "message")
            if f"raised {kind} there" != parted.sides[0][1]:
                continue
            says = told(kind, message)
            cause = Cause.RANK if says is None else says.cause
            evidence = [_finding(at.first), Evidence("exception", f"rank {rank} handled {kind}: {message[:200]}")]
            about = cause, Strength.WEAK, Restart.UNKNOWN
            return [_by(at, "exception before the call", *about, evidence, parted.sides[0][0])]
    return []


def _other_calls(at: Situation) -> list[Suspicion]:
    """SC202 or SC702, some ranks make a call that others never make: program, strong, restart no."""
    if at.first is None or at.first.code not in (CALL_SKIPPED.code, RANK_EXITED_EARLY.code):
        return []
    return [_by(at, "calls left out", Cause.PROGRAM, Strength.STRONG, Restart.NO, [_finding(at.first)], at.suspects)]


def _missing(at: Situation) -> list[Suspicion]:
    """SC201, a rank that is alive did not come: rank, weak. The report states what the rank did instead."""
    if at.first is None or at.first.code != MISSING_RANK.code or not at.suspects:
        return []
    return [_weak(at, "missing rank", Cause.RANK)]


def _unknown(at: Situation) -> list[Suspicion]:
    """No other rule fits: unknown."""
    evidence = [_finding(at.first)] if at.first is not None else []
    evidence += [_ended(at, one) for one in list(at.job.failures.values())[:1] if not evidence]
    return [_by(at, "none", Cause.UNKNOWN, Strength.WEAK, Restart.UNKNOWN, evidence, at.suspects)]


RULE_LIST: Final = (
    CauseRule("calls disagree", _proved_by_calls),
    CauseRule("hardware fault", _hardware, beside=True),
    CauseRule("killed for memory", _killed_for_memory, beside=True),
    CauseRule("device error", _device_errors),
    CauseRule("told by the exception", _told_by_exceptions),
    CauseRule("alike on all ranks", _alike_on_all),
    CauseRule("crash", _crashed),
    CauseRule("ended from outside", _ended_from_outside),
    CauseRule("failed alone", _alone),
    CauseRule("stopped process", _stopped),
    CauseRule("other hardware fault", _other_hardware, beside=True),
    CauseRule("missing in RAS", _ras, beside=True),
    CauseRule("lost node", _lost_nodes),
    CauseRule("lost connections", _lost_connections),
    CauseRule("exception before the call", _skipped_after_exception),
    CauseRule("calls left out", _other_calls),
    CauseRule("wrong values", _wrong_values),
    CauseRule("missing rank", _missing),
    CauseRule("none", _unknown),
)
"""All rules, in the order in which they are believed."""


def _by(
    at: Situation,
    rule: str,
    cause: Cause,
    strength: Strength,
    restart: Restart,
    evidence: Iterable[Evidence],
    ranks: Iterable[int],
) -> Suspicion:
    """A suspicion on ranks and their hosts; without a known host no restart can leave one out."""
    who = tuple(sorted(ranks))
    hosts = at.facts.hosts_of(who) if cause is Cause.MACHINE else ()
    helps = Restart.UNKNOWN if restart is Restart.WITHOUT_HOSTS and not hosts else restart
    return Suspicion(rule, cause, strength, helps, tuple(evidence), who, hosts)


def _weak(at: Situation, rule: str, cause: Cause) -> Suspicion:
    evidence = [] if at.first is None else [_finding(at.first)]
    return _by(at, rule, cause, Strength.WEAK, Restart.UNKNOWN, evidence, at.suspects)


def _finding(finding: Finding) -> Evidence:
    return Evidence(finding.code, finding.message)


def _seen(at: Situation) -> list[Evidence]:
    return [] if at.first is None else [_finding(at.first)]


def _ended(at: Situation, failure: Failure) -> Evidence:
    """How a rank ended."""
    number, source = at.signal_of(failure), "exception" if failure.type else "exit code"
    shell = f" ({signal_name(number)} in a shell)" if number and (failure.exit_code or 0) > 0 else ""
    return Evidence(source, f"rank {failure.rank} {failure.text()}{shell}")


def _by_signal(at: Situation, *numbers: int) -> list[Failure]:
    return [one for one in at.own.values() if at.signal_of(one) in numbers]


def _log_of(host: HostFacts) -> str:
    return f"kernel log of {host.host}" if host.host else "kernel log"
