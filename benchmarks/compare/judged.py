"""The one rule by which every tool's text is judged: does it name the cause, the culprits, the line?

*Cause*: the text has the words that stand in ``CAUSES`` beside the code of the planted bug: each tool's own words,
generously. *Accused* are the ranks that the text holds responsible: those that simcoll calls culprits; torchfrtrace's
"Culprit rank" and missing ranks; of DETAIL those that "failed to pass monitoredBarrier", else those that occur in every
pair of its mismatches; else the ranks that print an error of their own (no timeout, no closed connection). They are
the culprits ``alone``, or ``among`` others, or ``others`` are accused, or nobody is (``nobody``).
*Line*: the text has the file's name with the number of the line that is marked as the bug; a traceback counts.

*Reported*: the tool says that something is wrong, whatever it is. *Class*: what it says first belongs to the bug's
class of ``CLASSES``, which are those of the MPI Bugs Initiative as far as torch.distributed has them; of a tool without
codes, any of its words may. *Extra*: how many findings it lists beyond one.
"""

from __future__ import annotations

import re
import signal
from dataclasses import asdict, dataclass

from benchmarks.compare.programs import Program
from benchmarks.compare.tools import Run
from simcoll.core.ranges import parse_ranks

CRASHES = {-int(one) for one in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)}

_SIZES = r"Tensor (Tensor )?shapes: |SIZE_OR_SYNTAX_MISMATCH|Input/output mismatch"
_ABSENT = r"failed to pass monitoredBarrier|Not all ranks joining|missing ranks: "
_OWN = r"(?:Error|Exception): (?!.*(?:Timed out|timed out|Connection closed|Connection reset|monitoredBarrier))"
_GLOO_SIZE = r"preamble\.length|nbytes"
CAUSES = {
    "SC101": r"Op type: |COLLECTIVE_TYPE_MISMATCH",
    "SC102": rf"{_SIZES}|{_GLOO_SIZE}",
    "SC103": r"Tensor (Tensor )?dtypes: |COLLECTIVE_DTYPE_MISMATCH",
    "SC104": r"reduce ?op\w* .*(differ|mismatch|does not match)",
    "SC105": r"root\w* .*(differ|mismatch|does not match)",
    "SC106": rf"{_SIZES}|split.*(differ|mismatch|does not match)",
    "SC108": r"(layout|memory.format|stride)\w* .*(differ|mismatch|does not match)",
    "SC109": _SIZES,
    "SC110": rf"{_SIZES}|number of tensors",
    "SC201": _ABSENT,
    "SC202": rf"{_ABSENT}|Sequence number: ",
    "SC203": r"Op type: |COLLECTIVE_TYPE_MISMATCH",
    "SC204": r"deadlock|cycle",
    "SC301": _GLOO_SIZE,
    "SC302": r"dtypes? .*(differ|mismatch|does not match)",
    "SC303": r"tags? .*(differ|mismatch|does not match)",
    "SC304": r"no matching (send|recv|receive)|without (send|recv|receive)",
    "SC401": r"members.*(differ|mismatch)|group.*not.*created",
    "SC402": r"does not belong to the given group|not part of the (given )?group|not a member",
    "SC501": r"never waited|was not waited",
    "SC502": r"changed while|modified while|in flight",
    "SC503": r"overlap",
    "SC504": r"DDP expects same model|appears not to match",
    "SC601": _OWN,
    "SC701": rf"first failure: |{_OWN}",
    "SC702": _ABSENT,
    "SC904": r"parameters .*(differ|diverge|drift)",
}
"""What a tool's text must have to name the cause, beside simcoll's code itself."""

CLASSES = {
    "call ordering": ("SC101", "SC201", "SC202", "SC203", "SC204", "SC304", "SC305", "SC702"),
    "parameter matching": (*(f"SC1{number:02}" for number in range(2, 11)), "SC301", "SC302", "SC303", "SC504"),
    "invalid call": ("SC402", "SC601"),
    "groups": ("SC401",),
    "requests and buffers": ("SC501", "SC502", "SC503"),
    "failed rank": ("SC701",),
    "result": tuple(f"SC90{number}" for number in range(1, 7)),
}

_HEADING = re.compile(r"^(SC\d{3}) .*$", re.MULTILINE)
_READER = re.compile(r"\w+_MISMATCH|Not all ranks joining[^\n]*", re.MULTILINE)
_PREFIX = re.compile(r"^\[rank(\d+)\]: ?(.*)$", re.MULTILINE)
_PAIR = re.compile(r"Rank (\d+) is running collective: .*?but Rank (\d+) is running collective", re.DOTALL)
_ALARM = re.compile(r"^SC\d{3} |_MISMATCH|(Detected|output) mismatch|Not all ranks joining|missing ranks", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a tool made of one program.

    ``ended``: ``silent`` (every rank exits 0), ``crash`` (a signal such as SIGABRT), ``hang`` (cut off), ``timeout`` or
    ``error``. ``told``: the exit code is not 0, the tool's if it is a command of its own, else the ranks'. ``alarm``: a
    correct program is said to be wrong, or does not end well. ``failed``: the tool itself ends with an exception.
    ``reported``, ``right_class``, ``extra``: see above.
    """

    tool: str
    program: str
    ended: str
    seconds: float
    cause: bool
    accused: str
    line: bool
    has_line: bool
    told: bool
    alarm: bool
    failed: bool
    reported: bool
    right_class: bool
    extra: int

    def to_json(self) -> dict[str, object]:
        """For the file."""
        return asdict(self)


def judged(program: Program, run: Run) -> Judged:
    """Apply the rule."""
    failed = "torchfrtrace" in run.tool and "Traceback" in run.judgement
    # What a reader that ends with an exception prints is about itself.
    text = "" if failed else run.judgement
    # The names of the programs say what is wrong with them.
    words = text.replace(program.name, "program")
    told = not failed and bool(any(run.exit_codes) if run.tool_exit is None else run.tool_exit)
    said = _ALARM.search(text) is not None
    return Judged(
        run.tool,
        run.program,
        ended(run),
        run.seconds,
        bool(program.code) and re.search(rf"\b{program.code}\b|{CAUSES[program.code]}", words) is not None,
        _relation(accused(text), set(program.culprits)) if program.culprits else "",
        program.line > 0 and re.search(rf'\b{program.file}(:|", line ){program.line}\b', text) is not None,
        program.line > 0,
        told,
        not program.code and (any(run.exit_codes) or bool(run.tool_exit) or said),
        failed,
        bool(program.code) and (told or said),
        bool(program.code) and in_class(words, program.code),
        extra(text),
    )


def in_class(text: str, code: str) -> bool:
    """Whether what a text says first belongs to the class of a code."""
    [codes] = [codes for codes in CLASSES.values() if code in codes]
    if headings := _HEADING.findall(text):
        return headings[0] in codes
    return any(re.search(CAUSES[one], text) for one in codes if one in CAUSES)


def extra(text: str) -> int:
    """How many findings a text lists beyond one."""
    said = {found.group() for pattern in (_HEADING, _READER) for found in pattern.finditer(text)}
    return max(0, len(said) - 1)


def ended(run: Run) -> str:
    """How the job itself ended, whatever was then said of it."""
    if CRASHES & set(run.exit_codes):
        return "crash"
    if run.cut_off:
        return "hang"
    if not any(run.exit_codes):
        return "silent"
    return "timeout" if re.search(r"[Tt]imed out|Timeout", run.output) else "error"


def accused(text: str) -> set[int]:
    """The ranks that a text holds responsible."""
    for found in (_by_simcoll(text), _by_reader(text), _by_barrier(text), _by_pairs(text)):
        if found:
            return found
    return {int(rank) for rank, said in _PREFIX.findall(text) if re.search(rf"^[\w.]*{_OWN}", said)} | {
        int(rank) for rank in re.findall(r"first failure: rank (\d+)", text)
    }


def _by_simcoll(text: str) -> set[int]:
    lists = re.findall(r"culprits: ranks? ([\d, and-]*\d)", text)
    return {rank for one in lists for rank in parse_ranks(one.replace(" and ", ",").replace(" ", ""))}


def _by_reader(text: str) -> set[int]:
    missing = re.findall(r"^missing ranks: \{([\d, ]+)\}", text, re.MULTILINE)
    return {int(rank) for rank in [*re.findall(r"Culprit rank (\d+)", text), *re.findall(r"\d+", " ".join(missing))]}


def _by_barrier(text: str) -> set[int]:
    lists = re.findall(r"Ranks ([\d, ]+) failed to pass monitoredBarrier", text)
    return {int(rank) for rank in re.findall(r"\d+", " ".join(lists))}


def _by_pairs(text: str) -> set[int]:
    pairs = [{int(one), int(other)} for one, other in _PAIR.findall(text)]
    return set.intersection(*pairs) if pairs else set()


def _relation(found: set[int], culprits: set[int]) -> str:
    if not found:
        return "nobody"
    if found == culprits:
        return "alone"
    return "among" if culprits < found else "others"
