"""What ranks of a dry run send each other in earnest: objects, and what torch's pipelining tells of its stages.

A program cannot go on without these: they hold shapes. A rank keeps what it sends in the folder of the dry run, and
takes from there what it receives. Where the sender has not come to it and does not run either, the receiver writes down
whom it wants and ends; :mod:`simcoll.rounds_of_ranks` runs it again. These are pickles of the dry run's own processes,
in a folder of its user alone, and are gone when it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch

from simcoll.call import Call
from simcoll.rounds_of_ranks import FOLDER, LAST, STUCK, wanting

_MOST = 4096
"""So many messages of a pair of ranks are carried; of what comes after, the receiver gets nothing."""

_LOOK_SECONDS = 0.002
_PATIENCE_SECONDS = 10.0
"""For how long a rank waits for one that runs."""

Tensors = Sequence[torch.Tensor]


class Carrier:
    """One rank's end of all that is carried; nothing is, outside of :meth:`carrying`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder / FOLDER
        self._rank = rank
        self._depth = 0
        self._stuck = False
        self._numbers: dict[str, int] = {}
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # It is held as long as this process lives.
        self._lock = os.open(self._lock_of(rank), os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @contextmanager
    def carrying(self) -> Iterator[None]:
        """What is sent and received meanwhile is carried."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._end_if_stuck()

    def of_group(self, members: Sequence[int]) -> Callable[[Call, Tensors, Tensors], bool]:
        """What carries the messages of a group with these global ranks; True where a receive has got its message."""

        def carry(call: Call, inputs: Tensors, outputs: Tensors) -> bool:
            self._end_if_stuck()
            if not self._depth or call.peer is None or not 0 <= call.peer < len(members):
                return False
            if outputs:
                return self._receive(self._path(members, members[call.peer], self._rank, call), outputs[0])
            self._send(self._path(members, self._rank, members[call.peer], call), inputs[0])
            return False

        return carry

    def _path(self, members: Sequence[int], sender: int, receiver: int, call: Call) -> Path:
        lane = hashlib.sha256(repr((tuple(members), call.tag or 0)).encode()).hexdigest()[:16]
        name = f"{sender}-{receiver}-{lane}"
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        return self._folder / f"{name}-{number}"

    def _send(self, path: Path, tensor: torch.Tensor) -> None:
        if int(path.name.rpartition("-")[2]) > _MOST:
            return
        part = path.with_suffix(".part")
        part.write_bytes(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        part.replace(path)

    def _receive(self, path: Path, tensor: torch.Tensor) -> bool:
        sender = int(path.name.partition("-")[0])
        if int(path.name.rpartition("-")[2]) > _MOST or not self._is_there(path, sender):
            return False
        data = path.read_bytes()
        if len(data) != tensor.numel() * tensor.element_size():
            return False
        if data:
            tensor.copy_(torch.frombuffer(bytearray(data), dtype=tensor.dtype).reshape(tensor.shape))
        return True

    def _is_there(self, path: Path, sender: int) -> bool:
        """Whether a message has been sent; ends this process where it may yet be."""
        limit = time.monotonic() + _PATIENCE_SECONDS
        while not path.exists():
            # A sender that is gone may have sent it before it went.
            if (self._runs(sender) and time.monotonic() < limit) or path.exists():
                time.sleep(_LOOK_SECONDS)
            elif not (self._folder / LAST).exists():
                wanting(self._folder, self._rank).write_text(f"{sender} {path.name}", encoding="ascii")
                _end(0)
            else:
                # Of a sender that has not run nothing is known.
                self._stuck = self._lock_of(sender).exists()
                return False
        return True

    def _end_if_stuck(self) -> None:
        """End where the real run would stand, when the record shows that this rank waits there."""
        if self._stuck:
            _end(STUCK)

    def _runs(self, rank: int) -> bool:
        try:
            other = os.open(self._lock_of(rank), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(other)
        return False

    def _lock_of(self, rank: int) -> Path:
        return self._folder / f"{rank}.lock"


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
