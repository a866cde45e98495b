"""The values that ranks of a dry run send each other beside files: objects, small messages, and keys of stores.

A rank saves what it sends. In the first pass a rank that receives waits, for a limited time, for a sender that was
started before it; it knows nothing of a sender that is started later. In the next passes each rank finds all that was
sent in the pass before. Pickled objects are read as in the real run, by the program that wrote them, in another of its
ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from simcoll.dryrun.rank.known_inputs import read_arrays, written_arrays
from simcoll.spec.call import Call
from simcoll.spec.semantics import Array, Outputs

if TYPE_CHECKING:
    from simcoll.dryrun.rank.shared_files import FileSharing

OBJECT_COLLECTIVES = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)
"""torch's functions that send objects."""

_LOOK_SECONDS = 0.001
_MOST_ELEMENTS = 256
_MOST_BYTES = 1 << 26
_UNKNOWN = object()
_END = "collectives at the end"


CollectiveCounts: TypeAlias = Mapping[str, int]
"""The number of collectives of each group that a rank had made."""


class CollectiveOrder(Protocol):
    """The order that collectives impose on what ranks do."""

    def counts(self) -> CollectiveCounts:
        """The collectives that this rank has made."""

    def is_before(self, counts: CollectiveCounts, rank: int) -> bool:
        """True if another rank, which had made so many, met this one in a collective after that."""

    def is_after(self, counts: CollectiveCounts, rank: int) -> bool:
        """True if another rank, which had made so many, met this one in a collective that this one is still to make."""


class SentValues:
    """The values that this rank sends, and those of others that it finds; ``raw`` is the folder of the dry run's files.

    ``note`` is called with the name and content of whatever is sent.
    """

    def __init__(
        self,
        sharing: FileSharing,
        rank: int,
        raw: str,
        note: Callable[[str, bytes], object],
        order: CollectiveOrder,
    ) -> None:
        self._sharing, self._note = sharing, note
        self.counts, self.is_before, self.is_after = order.counts, order.is_before, order.is_after
        self._folder = f"{raw}/sent"
        self._patience = self.patience = sharing.patience
        self.is_first_pass = sharing.run == 0
        atexit.register(self._tell_end)
        self.rank, self.world_size = rank, sharing.progress.world_size

    def put(self, name: str, data: bytes) -> None:
        """Save data that is sent, under a name that sender and receivers agree on."""
        if len(data) > _MOST_BYTES:
            return
        folder = f"{self._folder}/{self.rank}.{self._sharing.run}"
        os.makedirs(folder, exist_ok=True)
        place = f"{folder}/{_file_name(name)}"
        with open(f"{place}.part", "wb") as file:
            file.write(data)
        os.replace(f"{place}.part", place)
        self._note(_file_name(name), data)

    def get(self, source: int, name: str, is_enough: Callable[[bytes], bool] = lambda data: True) -> bytes | None:
        """The data that a rank (global) has sent under a name; None where that is unknown.

        A rank that is ahead is waited for until ``is_enough`` accepts its data.
        """
        found = self._awaited([source], [name], is_enough)
        return found and found[1]

    def find(self, *names: str) -> tuple[str, bytes] | None:
        """The name and the data that any rank has sent under one of these names; None where none is known to have."""
        return self._awaited([*range(self.world_size)], names)

    def _awaited(
        self, sources: Sequence[int], names: Sequence[str], is_enough: Callable[[bytes], bool] = lambda data: True
    ) -> tuple[str, bytes] | None:
        places = [(name, f"{self._of_last_pass(source)}/{_file_name(name)}") for name in names for source in sources]
        found: tuple[str, bytes] | None = None
        begin = time.monotonic()
        while True:
            ahead = any(map(self._is_ahead, sources))  # before the look: the sender may end in between
            for name, place in places:
                with contextlib.suppress(OSError), open(place, "rb") as file:
                    found = name, file.read()
                    break
            waited, begin = time.monotonic() - begin, time.monotonic()
            self._patience -= waited
            if (found and is_enough(found[1])) or not ahead or self._patience <= 0:
                return found
            time.sleep(_LOOK_SECONDS)

    def peek(self, source: int, name: str) -> bytes | None:
        """The data that a rank has sent under a name so far."""
        with contextlib.suppress(OSError), open(f"{self._of_last_pass(source)}/{_file_name(name)}", "rb") as file:
            return file.read()
        return None

    def is_known(self, rank: int) -> bool:
        """True if a rank was started before this one, or has run in a pass before."""
        return self._sharing.progress.was_started(rank, None if self._sharing.run else self.rank)

    def _tell_end(self) -> None:
        self.put(_END, json.dumps(self.counts()).encode())

    def has_stopped(self, rank: int) -> bool:
        """True if another rank has ended ahead of a collective that this one has made with it."""
        made = self.peek(rank, _END)
        return made is not None and self.is_before(json.loads(made), rank)

    def made(self) -> int:
        """The number of collectives that this rank has made."""
        return self._sharing.progress.made(self.rank)

    def has_sent(self, rank: int) -> bool:
        """True if a rank has sent anything in a pass before this one."""
        return bool(self._passes(rank))

    def _of_last_pass(self, source: int) -> str:
        return f"{self._folder}/{source}.{max(self._passes(source), default=0)}"

    def _passes(self, source: int) -> list[int]:
        """The passes before this one in which a rank has sent anything."""
        return [run for run in range(self._sharing.run) if os.path.isdir(f"{self._folder}/{source}.{run}")]

    def _is_ahead(self, source: int) -> bool:
        return self._sharing.run == 0 and self._sharing.progress.is_ahead(source, self.rank)


def has_sent(base: Path) -> bool:
    """True if a rank with files in ``base`` has sent anything but the number of its collectives."""
    return any(path.name != _file_name(_END) for path in (base / "sent").glob("*/*"))


def _file_name(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


class GroupMessages:
    """The messages of few numbers between this rank and the other members of a group; a guess unless ``trusted``."""

    def __init__(self, sent: SentValues, group: str, members: Sequence[int], place: int, *, trusted: bool) -> None:
        self._sent, self._group, self._members, self._place = sent, group, members, place
        self._trusted = trusted
        self._counts: dict[tuple[int, int, int], int] = {}

    def answer(self, call: Call, inputs: Sequence[Array], *, guessed: bool) -> tuple[Outputs, bool] | None:
        """Save a message that is sent; the content of one that is received and whether it is certain, if known."""
        buffers = (*call.inputs, *call.outputs)
        peer = call.peer
        if peer is None or not 0 <= peer < len(self._members) or sum(one.elements for one in buffers) > _MOST_ELEMENTS:
            return None
        key = self._key(call, peer)
        name = self._name_of_next(key)
        self._counts[key] = self._counts.get(key, 0) + 1
        if not call.outputs:
            if (document := written_arrays(inputs)) is not None:
                self._sent.put(name, json.dumps([guessed, document]).encode())
            return None
        found = self._sent.get(self._members[peer], name)
        if found is None:
            return None
        guessed, document = json.loads(found)
        arrays = read_arrays(document)
        if [array.size for array in arrays] != [buffer.elements for buffer in call.outputs]:
            return None
        shaped: Outputs = [np.reshape(array, buffer.shape) for array, buffer in zip(arrays, call.outputs, strict=True)]
        return shaped, self._trusted and not guessed

    def has_next(self, call: Call, peer: int) -> bool:
        """True if a peer is known to have sent a message for a receive that this rank has not taken yet."""
        return self._sent.peek(self._members[peer], self._name_of_next(self._key(call, peer))) is not None

    def _key(self, call: Call, peer: int) -> tuple[int, int, int]:
        ends = (peer, self._place) if call.outputs else (self._place, peer)
        return *ends, call.tag or 0

    def _name_of_next(self, key: tuple[int, int, int]) -> str:
        return f"message {self._group} {key} {self._counts.get(key, 0) + 1}"


class SharedObjects:
    """The objects of one group's object collectives."""

    def __init__(self, sent: SentValues, group: str, members: Sequence[int], place: int) -> None:
        self._sent, self._group, self._members, self._place = sent, group, members, place
        self._counts: dict[tuple[str, int, int], int] = {}

    def exchange(self, name: str, given: Mapping[str, Any]) -> bool:
        """Put the objects of other ranks into the lists of a call; returns True if none is missing."""
        exchanges = {
            "all_gather_object": self._all_gather,
            "gather_object": self._gather_to_one,
            "broadcast_object_list": self._broadcast,
            "scatter_object_list": self._scatter,
            "send_object_list": self._send,
            "recv_object_list": self._receive,
        }
        return exchanges[name](given)

    def _gather(self, given: Mapping[str, Any], into: list[Any] | None, root: int) -> bool:
        name = self._named("gather", root, -1)
        self._put(name, given["obj"])
        if into is None:
            return True
        if self._sent.is_first_pass:
            return False  # all objects are this rank's own: some of the others' would be another set on each rank
        known = True
        for place, member in enumerate(self._members):
            found = into[place] if place == self._place else self._get(member, name)
            if found is not _UNKNOWN:
                into[place] = found
            elif self._sent.has_sent(member):
                known = False
        return known

    def _all_gather(self, given: Mapping[str, Any]) -> bool:
        return self._gather(given, given["object_list"], -1)

    def _gather_to_one(self, given: Mapping[str, Any]) -> bool:
        root = self._place_of(given, "dst")
        return self._gather(given, given.get("object_gather_list") if root == self._place else None, root)

    def _broadcast(self, given: Mapping[str, Any]) -> bool:
        root = self._place_of(given, "src")
        return self._from(root, self._named("broadcast", root, -1), given["object_list"], given["object_list"])

    def _scatter(self, given: Mapping[str, Any]) -> bool:
        root = self._place_of(given, "src")
        name = self._named("scatter", root, -1)
        if root == self._place:
            self._put(name, given["scatter_object_input_list"])
            return True
        found = self._get(self._members[root], name)
        if not isinstance(found, list) or len(found) <= self._place:
            return False
        given["scatter_object_output_list"][0] = found[self._place]
        return True

    def _send(self, given: Mapping[str, Any]) -> bool:
        target = self._place_of(given, "dst")
        self._put(self._named("message", self._place, target), given["object_list"])
        return True

    def _receive(self, given: Mapping[str, Any]) -> bool:
        if given.get("src") is None and given.get("group_src") is None:
            return False
        source = self._place_of(given, "src")
        return self._from(source, self._named("message", source, self._place), None, given["object_list"])

    def _from(self, root: int, name: str, sent: list[Any] | None, into: list[Any]) -> bool:
        if root == self._place:
            self._put(name, sent)
            return True
        found = self._get(self._members[root], name)
        if not isinstance(found, list) or len(found) != len(into):
            return False
        into[:] = found
        return True

    def _named(self, kind: str, source: int, target: int) -> str:
        key = kind, source, target
        self._counts[key] = count = self._counts.get(key, 0) + 1
        return f"objects {self._group} {key} {count}"

    def _place_of(self, given: Mapping[str, Any], end: str) -> int:
        if (place := given.get(f"group_{end}")) is not None:
            return int(place)
        rank = given.get(end)
        return 0 if rank is None else self._members.index(rank)

    def _put(self, name: str, value: Any) -> None:
        self._sent.put(name, pickle.dumps(value))

    def _get(self, member: int, name: str) -> Any:
        found = self._sent.get(member, name)
        return _UNKNOWN if found is None else pickle.loads(found)  # noqa: S301  # of another rank of this program
