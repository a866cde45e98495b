"""Digests of a call's tensors, computed where the tensors are and written down when they have come to the host.

On a device the digest is queued on the stream of the thread that makes, or has waited for, the call; its numbers are
copied to pinned memory behind it, and are read once an event says that they have come. No host waits for a device.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from simcoll.core.strides import is_dense
from simcoll.spec.call import Call
from simcoll.spec.collectives import spec_of
from simcoll.spec.table import Rooted
from simcoll.spec.value_laws import SUMMED_BLOCK, is_float
from simcoll.values.arrays import HOST_CHUNK, applies, host_signs, number
from simcoll.values.choice import Choice
from simcoll.values.clearings import clearings
from simcoll.values.contents import HostCopy, aligned, apart, is_plain, plainly
from simcoll.values.digests import SideDigest, side_digest
from simcoll.values.faults import due_faults
from simcoll.values.folding import ROW
from simcoll.values.guard import EventBox, Guard
from simcoll.values.scaling import scaling_round

_DEVICE_CHUNK = 1 << 23

_WORDS = {0: torch.int64, 4: torch.int32, 2: torch.int16, 6: torch.int16}

_LOOKED_AT = 1024
"""Calls, at most, among which the next sum of gradients is looked for."""

_LAST_SECONDS = 0.5
"""The time that a group which ends waits for the digests of a call on a device."""


class _Torch:
    """torch, as a :class:`~simcoll.values.digests.Library`."""

    def words(self, flat: torch.Tensor, rows: int) -> torch.Tensor:
        width = _WORDS.get(flat.nbytes // rows % 8, torch.uint8)
        # A view of other elements has to begin at one of them.
        if flat.storage_offset() * flat.element_size() % width.itemsize or flat.data_ptr() % width.itemsize:
            flat = flat.clone()
        return flat.view(width).reshape(rows, -1).to(torch.int64)

    def integers(self, flat: torch.Tensor, rows: int = 1) -> torch.Tensor:
        return flat.to(torch.int64).reshape(rows, -1)

    def reals(self, flat: torch.Tensor) -> torch.Tensor:
        parts = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        return parts.to(torch.float64)

    def working(self, flat: torch.Tensor) -> torch.Tensor:
        if flat.is_complex():
            return torch.view_as_real(flat).reshape(-1)
        return flat.to(torch.float32) if flat.element_size() < 4 else flat

    def double(self, real: torch.Tensor) -> torch.Tensor:
        return real.to(torch.float64)

    def together(self, real: torch.Tensor) -> torch.Tensor:
        if real.device.type != "cpu":
            return real.sum(1).to(torch.float64)
        count, _, width = real.shape
        narrow, wide = _scratch.of(real.dtype, count * width)
        torch.sum(real, 1, out=narrow.view(count, width))
        return wide.copy_(narrow).view(count, width)

    def signs(self, count: int, like: torch.Tensor) -> torch.Tensor:
        return _signs(like.device)[:count]

    def weighed(self, table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        # A program that wants deterministic algorithms may refuse matrix products on its device.
        return table @ weights if table.device.type == "cpu" else (table * weights).sum(1)

    def squares(self, real: torch.Tensor, rows: int) -> torch.Tensor:
        if rows == 1 and real.device.type == "cpu":
            # Over more elements float32 would not be as exact.
            parts = [torch.dot(part, part).item() for part in real.split(SUMMED_BLOCK)]
            return torch.tensor([sum(parts)], dtype=torch.float64, device="cpu")
        return real.reshape(rows, -1).square().sum(1, dtype=torch.float64)

    def largest(self, flat: torch.Tensor) -> torch.Tensor:
        least, most = torch.aminmax(self.working(flat))
        return torch.maximum(-least, most).to(torch.float64)

    def lines(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        whole = flat.shape[0] - flat.shape[0] % (ROW * 8 // flat.element_size())
        return aligned(flat[:whole]).view(torch.int64).reshape(-1, ROW), flat[whole:]

    def total(self, real: torch.Tensor) -> torch.Tensor:
        return real.sum()

    def is_known_finite(self, sums: torch.Tensor) -> bool:
        return sums.device.type == "cpu" and math.isfinite(sums.sum().item())

    def chunk(self, like: torch.Tensor) -> int:
        return HOST_CHUNK if like.device.type == "cpu" else _DEVICE_CHUNK

    def odd(self, count: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(1, 2 * count, 2, dtype=torch.int64, device=like.device)

    def row(self, numbers: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        signed = [value - (1 << 64) if value >> 63 else value for value in numbers]
        if like.device.type == "cpu":
            return torch.tensor(signed, dtype=torch.int64, device="cpu")
        made = torch.tensor(signed, dtype=torch.int64, device="cpu", pin_memory=like.device.type == "cuda")
        return made.to(like.device, non_blocking=True)

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([part.reshape(-1) for part in parts])

    def product(self, row: torch.Tensor) -> torch.Tensor:
        return row.prod()


class _Scratch(threading.local):
    """Memory for sums on a host. New memory for each costs more than the sum: the allocator gives it back each time."""

    def __init__(self) -> None:
        self._rows: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def of(self, dtype: torch.dtype, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """So many elements of a dtype, and as many of float64."""
        return self._row(dtype, count, 0), self._row(torch.float64, count, 1)

    def _row(self, dtype: torch.dtype, count: int, place: int) -> torch.Tensor:
        key = dtype, place
        row = self._rows.get(key)
        if row is None or row.shape[0] < count:
            # A tensor that is made in inference mode could be written to in no other.
            with torch.inference_mode(False):
                row = self._rows[key] = torch.empty(count, dtype=dtype, device="cpu")
        return row[:count]


_scratch = _Scratch()
_TORCH = _Torch()


@functools.cache
def _signs(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(host_signs()).to(device)


@dataclass(slots=True)
class _Side:
    """One side's numbers on their way to the host, as 64-bit words: ``layout`` has the name of each, whether it is a
    float, and of the numbers of a list its place there (-1: it is alone).
    """

    layout: list[tuple[str, bool, int]]
    copy: HostCopy

    def here(self) -> bool:
        """True if the numbers have come."""
        return self.copy.here()

    def document(self) -> dict[str, object]:
        """The numbers, which have come, as JSON values."""
        found: dict[str, Any] = {}
        whole, reals = self.copy.words.tolist(), self.copy.words.view(torch.float64).tolist()
        for (name, real, place), one, other in zip(self.layout, whole, reals, strict=True):
            value = number(other) if real else one
            if place < 0:
                found[name] = value
            elif name == "points":
                found.setdefault(name, []).extend([[]] * (place >= len(found.get(name, ()))))
                found[name][place] = [*found[name][place], value]
            else:
                found.setdefault(name, []).append(value)
        return found


def _on_its_way(found: SideDigest) -> _Side:
    """Begin to copy a digest to the host."""
    named = [(name, -1, value) for name, value in found.numbers.items()]
    named += [("points", place, point) for place, point in enumerate(found.points)]
    named += [
        (name, 0, parts)
        for name, parts in (("parts", found.parts), ("squared_parts", found.squared_parts))
        if parts is not None
    ]
    layout = [(name, value.dtype == torch.float64, place) for name, place, value in named for _ in range(value.numel())]
    parts = [value.reshape(-1).view(torch.int64) for _, _, value in named]
    words = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64, device="cpu")
    return _Side(layout, HostCopy.of(words))


def _adds_floats(call: Call) -> bool:
    law = spec_of(call).values
    return law is not None and law.reduced and any(is_float(buffer.dtype) for buffer in call.inputs)


class ValueWatch:
    """Digests the calls of one rank in one group. ``index`` is the group's in the black box."""

    def __init__(self, choice: Choice, box: EventBox, index: int, group_rank: int, group_size: int) -> None:
        self.choice = choice
        self._box = box
        self._index = index
        self._rank, self._size = group_rank, group_size
        self._open: deque[CallValues] = deque()
        self._lock = threading.Lock()
        self._told = False
        self._asked = 0
        self._wants_sum = 0
        self.chosen = 1
        """The number of the next call whose values may be checked."""
        self.guard = Guard(choice, lambda: box, "calls")
        self._clearings = clearings.here

    def begin(
        self,
        call: Call,
        sequence: int,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        of_model: bool = False,
    ) -> CallValues | None:
        """Digest the data that a call is about to send; None for a call that is not chosen, or has no law.

        ``of_model``: torch's layers, wrappers or optimizers make the call, or a backward pass does.
        """
        if call.peer is not None or not self._takes(
            sequence, is_due=of_model and self._wants_sum > 0 and _adds_floats(call)
        ):
            return None
        noted: dict[str, object] = {} if (scaling := scaling_round()) is None else {"scaling": scaling}
        noted |= {"of_model": True} if of_model else {}
        cleared = clearings.here.at_call(of_buffers=of_model and spec_of(call).rooted is Rooted.FROM_ROOT)
        noted |= {"cleared": cleared} if cleared else {}
        noted |= {"sampled": True} if self.choice.leaves_out(sequence) else {}
        return self.guard.count(lambda: self._begun(call, sequence, inputs, outputs, noted))

    def want_sum(self, *, wanted: bool) -> None:
        """Digest the next floats that torch adds up for a model, such as its gradients, or no longer look for them."""
        if wanted or self._wants_sum:
            self._wants_sum = _LOOKED_AT if wanted else 0
            self.chosen = 0

    def _takes(self, sequence: int, *, is_due: bool) -> bool:
        # Threads that share a group may come out of order.
        taken = self.choice.takes(sequence, max(sequence - self._asked, 0), always=is_due)
        self._asked = max(sequence, self._asked)
        self._wants_sum = 0 if is_due else max(self._wants_sum - 1, 0)
        if sequence >= self.chosen and not self._wants_sum:
            self.chosen = self.choice.next(sequence)
        return taken

    def _begun(
        self,
        call: Call,
        sequence: int,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        noted: dict[str, object],
    ) -> CallValues | None:
        if not all(is_plain(tensor) for tensor in (*inputs, *outputs)):
            return None
        sent = self._digest(call, sequence, inputs, sent=True)
        return CallValues(self, call, sequence, noted, sent, outputs)

    def result(self, call: Call, sequence: int, outputs: Sequence[torch.Tensor]) -> _Side | None:
        """Digest the result of a call."""
        if applies(call, self._rank, sent=False):
            due_faults.here.apply(outputs)
        return self.guard.count(lambda: self._digest(call, sequence, outputs, sent=False))

    def _digest(self, call: Call, sequence: int, tensors: Sequence[torch.Tensor], *, sent: bool) -> _Side | None:
        if not applies(call, self._rank, sent=sent):
            return None
        with apart():
            rows = [_row(tensor) for tensor in tensors]
            found = side_digest(call, self._rank, self._size, sequence, rows, _TORCH, sent=sent)
            return None if found is None else _on_its_way(found)

    def settle(self, values: CallValues | None = None, *, last: bool = False) -> None:
        """Write down what has come to the host; all that comes, where it is the ``last`` time."""
        self.guard.count(lambda: self._settle(values, last=last))

    def _settle(self, values: CallValues | None, *, last: bool) -> None:
        with self._lock:
            if values is not None:
                self._open.append(values)
            if not self._told and scaling_round() is not None:
                self._told = True
                self._box.event("scaled")
            while self._open:
                first = self._open[0]
                if not last and not first.here():
                    return
                self._open.popleft()
                if not first.here() and not first.comes(_LAST_SECONDS):
                    continue
                with apart():
                    numbers = first.numbers()
                self._clearings.carried |= first.carries(numbers)
                self._box.event("values", group=self._index, sequence=first.sequence, **numbers)


class CallValues:
    """The values of one call that is under way."""

    def __init__(
        self,
        watch: ValueWatch,
        call: Call,
        sequence: int,
        noted: dict[str, object],
        sent: _Side | None,
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """``noted`` is written down beside the digests."""
        self.sequence = sequence
        self._noted = noted
        self._watch = watch
        self._call = call
        self._outputs = outputs
        self._sent = sent
        self._received: _Side | None = None
        self._result: Callable[[Call, int, Sequence[torch.Tensor]], _Side | None] | None = watch.result
        self._lock = threading.Lock()

    def ended(self) -> None:
        """Digest the result, when the call has ended well and before the program has it; once."""
        with self._lock:
            result, self._result = self._result, None
            if result is None:
                return
            self._received = result(self._call, self.sequence, self._outputs)
            self._outputs = ()
        self._watch.settle(self)

    def here(self) -> bool:
        """True if its numbers have come to the host."""
        return all(side is None or side.here() for side in (self._sent, self._received))

    def comes(self, seconds: float) -> bool:
        """Wait so long at most for its numbers; returns True if they have come. A blocked device brings none."""
        deadline = time.monotonic() + seconds
        while not self.here() and time.monotonic() < deadline:
            time.sleep(0.001)
        return self.here()

    def numbers(self) -> dict[str, object]:
        """Both digests, as far as this rank has them, and what else was noted of the call."""
        both = {"sent": self._sent, "received": self._received}
        return self._noted | {name: side.document() for name, side in both.items() if side is not None}

    def carries(self, numbers: Mapping[str, object]) -> bool:
        """True if the call reduces what a model sends, and the numbers of either side tell of a NaN or an infinity."""
        law = spec_of(self._call).values
        if "of_model" not in self._noted or law is None or not law.reduced:
            return False
        sides = (numbers.get(name) for name in ("sent", "received"))
        return any(side.get(name) for side in sides if isinstance(side, dict) for name in ("nan", "plus", "minus"))


def _row(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements in the order in which they lie in memory, without gaps; row-major where there are some. Any
    byte but zero is true: a call may bring another one than was sent.
    """
    tensor = plainly(tensor).detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.bool:
        tensor = tensor.view(torch.uint8) != 0
    if not tensor.is_contiguous() and is_dense(tensor.shape, tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.contiguous().reshape(-1)
