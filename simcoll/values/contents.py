"""Digests of many tensors at once, one for each: of a model's parameters, of an optimizer's state, of a batch.

A large tensor is read once: its rows of 255 words of 64 bits are added up, and the sums are hashed with their places,
as are the words of small tensors. One changed element changes the digest. Elements that change places within a row of
a large tensor do not.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from simcoll.core.strides import span
from simcoll.values.folding import ADDED, FACTOR, ROW, SMALL

_Item = TypeVar("_Item")

_LAST_SECONDS = 0.5

_OWN = (torch.Tensor, torch.nn.Parameter)
_DISPATCH = torch.Tensor.__torch_dispatch__
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@contextmanager
def unseen() -> Iterator[None]:
    """Do what modes and functions of tensors' classes, torch's and the program's, know nothing of."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


@contextmanager
def apart() -> Iterator[None]:
    """Compute what autograd knows nothing of either."""
    with unseen(), torch.no_grad():
        yield


def is_plain(tensor: object) -> bool:
    """True for a tensor that has memory of its own to be read, all of it: a storage may have been let go. A class may
    derive from torch's, if it does not say itself what operations do with its memory.
    """
    own = getattr(type(tensor), "__torch_dispatch__", None)
    if not isinstance(tensor, torch.Tensor) or own is not _DISPATCH or is_lazy(tensor):
        return False
    with torch._C.DisableTorchFunction():
        tensor = plainly(tensor)
        return (
            tensor.layout is torch.strided
            and not tensor.is_quantized
            and not tensor.is_nested
            and tensor.device.type in ("cpu", "cuda")
            and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            and tensor.untyped_storage().nbytes() >= _end_of(tensor)
        )


def plainly(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one of torch's own class: those that derive from it may define its attributes and methods anew.

    To be called where functions of tensors' classes are out of force.
    """
    return tensor if type(tensor) in _OWN else torch.Tensor.detach(tensor)


def _end_of(tensor: torch.Tensor) -> int:
    """The bytes of a storage up to the last element of a tensor in it."""
    if not tensor.numel():
        return 0
    return int(tensor.storage_offset() + span(tensor.shape, tensor.stride())) * tensor.element_size()


@dataclass(frozen=True, slots=True)
class HostCopy:
    """64-bit integers on their way to the host."""

    words: torch.Tensor
    arrived: torch.cuda.Event | None

    @classmethod
    def of(cls, words: torch.Tensor) -> HostCopy:
        """Begin to copy a row of integers behind all that is queued on the thread's stream; no host waits."""
        if words.device.type != "cuda":
            return cls(words, None)
        host = torch.empty(words.shape, dtype=torch.int64, device="cpu", pin_memory=True)
        host.copy_(words, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(words.device))
        return cls(host, arrived)

    def here(self) -> bool:
        """True if the numbers have come."""
        return self.arrived is None or self.arrived.query()


class Arrivals(Generic[_Item]):
    """Copies on their way to the host, in the order in which they were begun, each with what it is of.

    Every thread of the rank may add one.
    """

    def __init__(self) -> None:
        self._open: deque[tuple[HostCopy, _Item]] = deque()
        self._lock = threading.Lock()

    def add(self, copy: HostCopy, item: _Item) -> None:
        """Wait for a copy."""
        with self._lock:
            self._open.append((copy, item))

    def settle(self, take: Callable[[npt.NDArray[np.int64], _Item], None], *, last: bool = False) -> None:
        """Hand over what has come, up to the first that has not; the ``last`` time, also what comes soon."""
        deadline = time.monotonic() + _LAST_SECONDS
        with self._lock:
            while self._open:
                copy, item = self._open[0]
                while last and not copy.here() and time.monotonic() < deadline:
                    time.sleep(0.001)
                if not copy.here():
                    return
                self._open.popleft()
                take(copy.words.numpy(), item)


class Hasher:
    """Computes the digests of lists of tensors; keeps what the next list of the same shapes needs."""

    def __init__(self) -> None:
        self._shape: object = None
        with apart():
            self._owners = self._factors = torch.empty(0, dtype=torch.int64, device="cpu")

    def digests(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A number for each tensor, on their device, as int64; the tensors are plain ones of one device."""
        with apart():
            pieces: dict[int, list[tuple[int, torch.Tensor]]] = defaultdict(list)
            words: list[tuple[int, torch.Tensor]] = []
            for place, tensor in enumerate(tensors):
                flat = flat_row(tensor)
                if flat.nbytes <= SMALL:
                    pieces[flat.element_size()].append((place, _as_integers(flat)))
                    continue
                row = ROW * 8 // flat.element_size()
                whole = flat.shape[0] - flat.shape[0] % row
                words.append((place, aligned(flat[:whole]).view(torch.int64).reshape(-1, ROW).sum(1)))
                pieces[flat.element_size()].append((place, _as_integers(flat[whole:])))
            for _, parts in sorted(pieces.items()):
                words += parts
            return self._sums(words, len(tensors))

    def _sums(self, words: Sequence[tuple[int, torch.Tensor]], count: int) -> torch.Tensor:
        """The sum of the hashed words of each item."""
        shape = count, [(owner, part.shape[0], part.dtype) for owner, part in words]
        rows = [part.to(torch.int64) for part in _joined([part for _, part in words])]
        joined = torch.cat(rows) if len(rows) > 1 else rows[0]
        if shape != self._shape or joined.device != self._owners.device:
            owners = torch.tensor([owner for owner, _ in words], dtype=torch.int64, device="cpu")
            lengths = torch.tensor([part.shape[0] for _, part in words], dtype=torch.int64, device="cpu")
            owners = owners.repeat_interleave(lengths)
            if joined.device.type == "cuda":
                # A host waits for a copy of other memory.
                owners = owners.pin_memory()
            self._owners = owners.to(joined.device, non_blocking=True)
            self._factors = 2 * torch.arange(joined.shape[0], dtype=torch.int64, device=joined.device) + 1
            self._shape = shape
        hashed = joined + ADDED
        hashed *= FACTOR
        hashed ^= hashed >> 32 & 0xFFFFFFFF
        hashed *= self._factors
        sums = torch.zeros(count, dtype=torch.int64, device=joined.device)
        return sums.index_add_(0, self._owners, hashed)


def _joined(parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Neighbours of one dtype as one row."""
    found: list[list[torch.Tensor]] = []
    for part in parts:
        if found and found[-1][0].dtype == part.dtype:
            found[-1].append(part)
        else:
            found.append([part])
    return [torch.cat(same) if len(same) > 1 else same[0] for same in found]


def flat_row(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as one row without gaps; those of more than eight bytes as two integers each."""
    flat = plainly(tensor).detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return flat.view(torch.int64) if flat.element_size() > 8 else flat


def first_elements(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """So many elements at most of a plain tensor, the first ones in the order of its rows, as one row. Of a tensor with
    gaps no more is copied than the rows that hold them.
    """
    while tensor.dim() and tensor.numel() > count:
        each = tensor.numel() // tensor.shape[0]
        if each < count:
            return tensor[: -(-count // each)].reshape(-1)[:count]
        tensor = tensor[0]
    return tensor.reshape(-1)


def _as_integers(flat: torch.Tensor) -> torch.Tensor:
    """The elements' bits."""
    return flat.view(_INTEGERS.get(flat.element_size(), torch.int64))


def aligned(flat: torch.Tensor) -> torch.Tensor:
    """The row itself, or a copy where words of eight bytes cannot begin at its first element."""
    shifted = flat.storage_offset() * flat.element_size() % 8 or flat.data_ptr() % 8
    return flat.clone() if shifted else flat
