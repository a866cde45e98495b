"""Flight Recorder dumps as NCCL's watchdog writes them, made without a GPU, for benchmarks: many ranks, many entries.

    python -m benchmarks.flight_dumps DIRECTORY --ranks 64 --entries 20000

The byte stream is the one of torch's own pickler (protocol 2, each distinct text and stack frame once, then by
number), so that ``torchfrtrace`` reads the files too. The job is a training step of several layers on three groups:
all ranks, halves, and pairs.
"""

from __future__ import annotations

import argparse
import pickle
import struct
import time
from collections.abc import Mapping
from pathlib import Path

VERSION = "2.10"
STEP_NS = 1_500_000


class TorchPickler:
    """Writes plain values as torch's C++ pickler does; dicts given as :class:`Shared` once, then by number."""

    def __init__(self) -> None:
        self._out = bytearray(b"\x80\x02")
        self._texts: dict[str, int] = {}
        self._shared: dict[int, int] = {}
        self._next = 0

    def dump(self, value: object) -> bytes:
        """The pickle of one value."""
        self._push(value)
        self._out += b"."
        return bytes(self._out)

    def _push(self, value: object) -> None:
        if value is None:
            self._out += b"N"
        elif isinstance(value, bool):
            self._out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self._number(value)
        elif isinstance(value, float):
            self._out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self._text(value)
        elif isinstance(value, Shared):
            self._once(value)
        elif isinstance(value, tuple):
            for part in value:
                self._push(part)
            self._out += {1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)]
        elif isinstance(value, Mapping):
            self._items(b"}(", [part for pair in value.items() for part in pair], b"u")
        elif isinstance(value, list):
            self._items(b"](", value, b"e")
        else:
            raise TypeError(f"a dump has no {type(value).__name__}")

    def _items(self, opening: bytes, items: list[object], closing: bytes) -> None:
        self._out += opening
        for item in items:
            self._push(item)
        self._out += closing

    def _number(self, value: int) -> None:
        if 0 <= value < 1 << 8:
            self._out += b"K" + struct.pack("<B", value)
        elif 0 <= value < 1 << 16:
            self._out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self._out += b"J" + struct.pack("<i", value)
        else:
            self._out += b"\x8a\x08" + struct.pack("<q", value)

    def _text(self, value: str) -> None:
        if value in self._texts:
            self._get(self._texts[value])
            return
        data = value.encode()
        self._out += b"X" + struct.pack("<I", len(data)) + data
        self._texts[value] = self._put()

    def _once(self, value: Shared) -> None:
        if id(value) in self._shared:
            self._get(self._shared[id(value)])
            return
        self._push(dict(value.items))
        self._shared[id(value)] = self._put()

    def _put(self) -> int:
        index, self._next = self._next, self._next + 1
        self._out += b"q" + struct.pack("<B", index) if index < 256 else b"r" + struct.pack("<I", index)
        return index

    def _get(self, index: int) -> None:
        self._out += b"h" + struct.pack("<B", index) if index < 256 else b"j" + struct.pack("<I", index)


class Shared:
    """A dict that many entries refer to, such as a stack frame."""

    __slots__ = ("items",)

    def __init__(self, items: Mapping[str, object]) -> None:
        self.items = tuple(items.items())


def main() -> None:
    """Write the dumps that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=20000)
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    write_dumps(arguments.directory, arguments.ranks, arguments.entries, arguments.layers)


def plain(value: object) -> object:
    """The same value with shared dicts as one dict each, so that Python's pickler writes them once too."""
    if isinstance(value, Shared):
        return _PLAIN.setdefault(id(value), dict(value.items))
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list) else value


_PLAIN: dict[int, dict[str, object]] = {}


def write_dumps(directory: Path, ranks: int, entries: int, layers: int = 12, *, python: bool = False) -> int:
    """Write ``nccl_trace_rank_N`` for each rank; returns how many bytes there are.

    ``python``: as a tool leaves them that has read and rewritten them, by Python's own pickler (protocol 4).
    """
    directory.mkdir(parents=True, exist_ok=True)
    written, now_ns = 0, time.time_ns()
    for rank in range(ranks):
        whole = document(rank, ranks, entries, layers, now_ns)
        data = pickle.dumps(plain(whole), 4) if python else TorchPickler().dump(whole)
        written += (directory / f"nccl_trace_rank_{rank}").write_bytes(data)
    return written


def document(rank: int, ranks: int, entries: int, layers: int, now_ns: int) -> dict[str, object]:
    """What one rank's recorder holds after so many calls, the last of which has just ended."""
    groups = _groups(rank, ranks)
    steps = _step(rank, ranks, groups, layers)
    made: list[dict[str, object]] = []
    sequences = dict.fromkeys(groups, 0)
    while len(made) < entries:
        for call in steps:
            name = str(call["group"])
            sequences[name] += 1
            made.append(_entry(call, groups, len(made), sequences[name], now_ns - (entries - len(made)) * STEP_NS))
            if len(made) == entries:
                break
    return {
        "version": VERSION,
        "pg_config": {
            name: {"name": name, "desc": about, "ranks": str(list(members))}
            for name, (about, members) in groups.items()
        },
        "comm_lib_version": "2.27.5",
        "pg_status": {
            str(number): {
                "last_enqueued_collective": sequences[name],
                "last_started_collective": -1,
                "last_completed_collective": sequences[name],
            }
            for number, name in enumerate(groups)
        },
        "entries": made,
    }


def _groups(rank: int, ranks: int) -> dict[str, tuple[str, range]]:
    """All ranks, the half that this one is in, and its pair."""
    half = max(ranks // 2, 1)
    return {
        "0": ("default_pg", range(ranks)),
        str(1 + rank // half): ("mesh_dp", range(rank // half * half, min((rank // half + 1) * half, ranks))),
        str(10 + rank // 2): ("mesh_tp", range(rank // 2 * 2, min(rank // 2 * 2 + 2, ranks))),
    }


def _step(rank: int, ranks: int, groups: Mapping[str, tuple[str, range]], layers: int) -> list[dict[str, object]]:
    every, half, pair = groups
    sizes = {name: len(members) for name, (_, members) in groups.items()}
    calls = []
    for layer in range(layers):
        width = 1 << (8 + layer % 5)
        calls.append(
            _call("_all_gather_base", half, [[width * 64]], [[width * 64 * sizes[half]]], 40 + layer, "forward")
        )
        calls.append(_call("all_reduce", pair, [[8, width]], [[8, width]], 60, "attention"))
        calls.append(_call("all_reduce", pair, [[8, width]], [[8, width]], 77, "feed_forward"))
    for layer in range(layers):
        width = 1 << (8 + layer % 5)
        calls.append(_call("_reduce_scatter_base", half, [[width * 64 * sizes[half]]], [[width * 64]], 140, "backward"))
    calls.append(_call("all_reduce", every, [[]], [[]], 201, "clip_gradients"))
    return calls


def _call(
    title: str, group: str, inputs: list[list[int]], outputs: list[list[int]], line: int, name: str
) -> dict[str, object]:
    torch = "/opt/conda/lib/python3.12/site-packages/torch"
    places = [
        (f"{torch}/distributed/distributed_c10d.py", 2800 + len(title), title),
        (f"{torch}/distributed/c10d_logger.py", 83, "wrapper"),
        ("/home/user/train/model.py", line, name),
        (f"{torch}/nn/modules/module.py", 1773, "_call_impl"),
        ("/home/user/train/train.py", 310, "train_step"),
        ("/home/user/train/train.py", 402, "main"),
        ("/home/user/train/train.py", 410, "<module>"),
    ]
    return {
        "title": title,
        "group": group,
        "inputs": inputs,
        "outputs": outputs,
        "frames": [_frame(*place) for place in places],
    }


_FRAMES: dict[tuple[str, int, str], Shared] = {}


def _frame(file: str, line: int, name: str) -> Shared:
    return _FRAMES.setdefault((file, line, name), Shared({"name": name, "filename": file, "line": line}))


def _entry(
    call: Mapping[str, object], groups: Mapping[str, tuple[str, range]], number: int, sequence: int, created: int
) -> dict[str, object]:
    name = str(call["group"])
    return {
        "frames": call["frames"],
        "record_id": number,
        "pg_id": list(groups).index(name),
        "process_group": (name, groups[name][0]),
        "thread_name": "python",
        "thread_id": "140223348632448",
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{call['title']}",
        "time_created_ns": created,
        "input_sizes": call["inputs"],
        "input_dtypes": ["BFloat16"],
        "output_sizes": call["outputs"],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 1_200_000 + number % 977,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
    }


if __name__ == "__main__":
    main()
