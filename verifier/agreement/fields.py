"""The fields that every rank must state alike: SC101, SC103 to SC105, SC107, and SC102 and SC110 for stated counts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Group
from simcoll.spec.call import SPARSE, UNEQUAL, Buffer
from simcoll.verifier.agreement.voices import Parts, Voice, each, part
from simcoll.verifier.findings.finding import Rule
from simcoll.verifier.findings.rules import (
    COALESCED_MISMATCH,
    DEVICE_MISMATCH,
    DTYPE_MISMATCH,
    INVALID_ARGUMENT,
    LAYOUT_MISMATCH,
    OP_MISMATCH,
    REDUCE_OP_MISMATCH,
    ROOT_MISMATCH,
    SIZE_MISMATCH,
)

_FAULTS_SHOWN = 4
_FORMS = {
    SPARSE: "sparse tensors",
    UNEQUAL: "tensors of several shapes",
    "list": "a list of tensors",
    "tensor": "one tensor for all",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which the ranks differ: its rule, its name in a call, its parts, and the sentence that says so.

    ``culprits`` are named where the field itself shows them; None leaves it to the majority.
    """

    rule: Rule
    name: str
    parts: Parts
    message: str
    culprits: tuple[int, ...] | None = None


def differing_ops(voices: Sequence[Voice]) -> Difference | None:
    """SC101: the ranks call different rows of the table."""
    parts = part(voices, lambda voice: voice.call.op)
    if len(parts) < 2:
        return None
    message = each(parts, lambda op, ranks, one: f"{ranks} {'calls' if one else 'call'} {op}")
    return Difference(OP_MISMATCH, "op", parts, message)


def faulty_calls(voices: Sequence[Voice]) -> Difference | None:
    """SC601: some ranks' calls contradict themselves, so that the backend will refuse them and the others wait.

    A rank whose tensor has another size than everybody's, where all must be equal, is left to SC102, one that names
    another root to SC105: the contradiction follows from it.
    """
    faults = {voice.rank: fault for voice in voices if (fault := voice.fault()) is not None}
    if not faults or len(faults) == len(voices) or _other_size(voices, faults) or _other_root(voices, faults):
        return None
    parts = part(voices, lambda voice: faults.get(voice.rank, ""))
    by_fault = {fault: [rank for rank in faults if faults[rank] == fault] for fault in faults.values()}
    clauses = [(f"{ranks_text(ranks)}: " if len(by_fault) > 1 else "") + fault for fault, ranks in by_fault.items()]
    text = (
        f"the call of {ranks_text(faults)} contradicts itself and will be refused: {'; '.join(clauses[:_FAULTS_SHOWN])}"
    )
    return Difference(INVALID_ARGUMENT, "arguments", parts, text, tuple(sorted(faults)))


def _other_size(voices: Sequence[Voice], faults: Mapping[int, str]) -> bool:
    spec = voices[0].spec
    if spec is None or not spec.agree & {"count", "root"} or _coalesces(voices):
        return False
    usual = {_measured(voice) for voice in voices if voice.rank not in faults}
    odd = {_measured(voice) for voice in voices if voice.rank in faults}
    return len(usual) == 1 and None not in odd and not usual & odd


def _other_root(voices: Sequence[Voice], faults: Mapping[int, str]) -> bool:
    """True if the faulty ranks only prepared for another root: a rank that takes itself for the root, or does not."""
    roots = {voice.call.root for voice in voices}
    return len(roots) > 1 and all(
        voice.call.root is None or 0 <= voice.call.root < voice.size for voice in voices if voice.rank in faults
    )


def _measured(voice: Voice) -> int | None:
    """Elements of the tensor that ranks compare."""
    if voice.spec is None or voice.spec.measured is None:
        return None
    buffers: tuple[Buffer, ...] = getattr(voice.call, voice.spec.measured)
    return buffers[0].elements if buffers else None


def differing_fields(group: Group, voices: Sequence[Voice]) -> list[Difference]:
    """Every stated field in which the ranks differ, causes first; the ops are known to agree."""
    coalesced = _coalesces(voices)
    found = [
        _simple(voices, DEVICE_MISMATCH, "device", _device, "{ranks} {has} the tensor on {value}"),
        *(
            _coalesced(voices)
            if coalesced
            else [_simple(voices, DTYPE_MISMATCH, "dtype", _dtype, "{ranks} {has} {value}")]
        ),
        _form(voices),
        _simple(voices, REDUCE_OP_MISMATCH, "reduce_op", _reduce_op, "{ranks} {reduces} with {value}"),
        _root(group, voices),
        None if coalesced else _simple(voices, SIZE_MISMATCH, "count", _count, "{ranks} {has} {value} elements"),
    ]
    return [difference for difference in found if difference is not None]


def _coalesces(voices: Sequence[Voice]) -> bool:
    """True if the calls carry several tensors; functional collectives coalesce a single one."""
    return any(voice.call.coalesced and len(voice.contents) > 1 for voice in voices)


def _simple(
    voices: Sequence[Voice], rule: Rule, name: str, value: Callable[[Voice], Hashable | None], clause: str
) -> Difference | None:
    parts = part(voices, value)
    if len(parts) < 2:
        return None

    def say(stated: Hashable, ranks: str, one: bool) -> str:
        text = clause.format(
            ranks=ranks, value=stated, has="has" if one else "have", reduces="reduces" if one else "reduce"
        )
        return text.replace(" 1 elements", " 1 element")

    return Difference(rule, name, parts, each(parts, say))


def _form(voices: Sequence[Voice]) -> Difference | None:
    parts = part(voices, lambda voice: None if voice.statement is None else voice.statement.form or "")
    if len(parts) < 2:
        return None
    sparse = SPARSE in parts
    plain = "dense tensors" if sparse else "tensors of one shape"

    def say(form: Hashable, ranks: str, one: bool) -> str:
        return f"{ranks} {'has' if one else 'have'} {_FORMS.get(str(form), form) or plain}"

    message = each(parts, say) + ", which the backend runs as different algorithms"
    return Difference(LAYOUT_MISMATCH if sparse else INVALID_ARGUMENT, "layout" if sparse else "form", parts, message)


def _root(group: Group, voices: Sequence[Voice]) -> Difference | None:
    """Roots are group ranks in a call and global ranks in a report."""
    parts = part(voices, lambda voice: None if voice.statement is None else voice.statement.root)
    if len(parts) < 2:
        return _no_root(group, voices)
    message = each(parts, lambda root, ranks, one: f"{ranks} {'has' if one else 'have'} root {_global(group, root)}")
    return Difference(ROOT_MISMATCH, "root", parts, message)


def shown_root(voices: Sequence[Voice]) -> int | None:
    """The root (a group rank) where no call names it, and the buffers of one rank alone show that it is the root."""
    shown = [voice.group_rank for voice in voices if voice.hides("root") and _shows_root(voice)]
    return shown[0] if len(shown) == 1 else None


def _shows_root(voice: Voice) -> bool:
    return voice.spec is not None and voice.spec.shows_root(voice.call)


def _no_root(group: Group, voices: Sequence[Voice]) -> Difference | None:
    """SC105 where no call names the root, and of all ranks of the group none has the buffers of one."""
    everybody = len(voices) == len(group.ranks) and not group.partial
    everybody = everybody and all(voice.hides("root") for voice in voices)
    if not everybody or any(map(_shows_root, voices)) or not any(_measured(voice) for voice in voices):
        return None
    parts = part(voices, lambda voice: voice.call)
    return Difference(ROOT_MISMATCH, "root", parts, "every rank takes another one for the root", ())


def _global(group: Group, root: Hashable) -> str:
    if isinstance(root, int) and 0 <= root < len(group.ranks):
        return str(group.ranks[root])
    return f"{root} (no member of the group)"


def _coalesced(voices: Sequence[Voice]) -> list[Difference]:
    """SC110, worded by the first place at which the lists of tensors differ; dtype and count are judged together."""
    parts = part(voices, lambda voice: tuple((item.dtype, item.count) for item in voice.contents))
    if len(parts) < 2:
        return []
    lists = [list(value) for value in parts]  # type: ignore[call-overload]
    index = next((i for i in range(max(map(len, lists))) if len({_at(items, i) for items in lists}) > 1), 0)

    def say(value: Hashable, ranks: str, one: bool) -> str:
        items = list(value)  # type: ignore[call-overload]
        number = "" if alike else f" (of {len(items)} tensors)"
        return f"{ranks} {'has' if one else 'have'} {_at(items, index)}{number}"

    alike = len({len(items) for items in lists}) == 1
    which = f"tensor {index} of {len(lists[0])}" if alike else f"tensor {index}"
    return [Difference(COALESCED_MISMATCH, "contents", parts, f"{which} differs: " + each(parts, say))]


def _at(items: Sequence[tuple[str, int | None]], index: int) -> str:
    if index >= len(items):
        return "none there"
    dtype, count = items[index]
    return f"{dtype} of unknown size" if count is None else f"{dtype}[{count}]"


def _dtype(voice: Voice) -> str | None:
    contents = voice.contents
    return contents[0].dtype if contents else None


def _count(voice: Voice) -> int | None:
    contents = voice.contents
    return contents[0].count if contents else None


def _device(voice: Voice) -> str | None:
    return None if voice.statement is None else voice.statement.device


def _reduce_op(voice: Voice) -> str | None:
    return None if voice.statement is None else voice.statement.reduce_op
