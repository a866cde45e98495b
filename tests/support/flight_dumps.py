"""Flight Recorder dumps for tests, as the versions of torch write them: documents, and the files that hold them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.flight_dumps import Shared, TorchPickler

MINOR_VERSIONS = range(12)
START_NS = 1_795_000_000_000_000_000

USER = {"name": "train_step", "filename": "/home/user/train.py", "line": 31}
TORCH = "/opt/conda/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
FRAMES = (
    {"name": "all_reduce", "filename": TORCH, "line": 2991},
    {"name": "wrapper", "filename": "/usr/lib/python3.12/functools.py", "line": 83},
    USER,
    {"name": "<module>", "filename": "/home/user/main.py", "line": 7},
)

SHARED_FRAMES = [Shared(frame) for frame in FRAMES]

SINCE = {
    "pg_status": 3,
    "nccl_version": 6,
    "comm_lib_version": 8,
    "thread_name": 10,
    "thread_id": 10,
}
"""The minor version from which on a field is there, of those that came after 2.0."""


def entry(number: int = 0, name: str = "nccl:all_reduce", **fields: object) -> dict[str, object]:
    """One entry of the newest version; the keyword arguments replace its fields."""
    made: dict[str, object] = {
        "frames": SHARED_FRAMES,
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python",
        "thread_id": "140223348632448",
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": name,
        "time_created_ns": START_NS + number * 1000,
        "duration_ms": 0.5 + number,
        "input_sizes": [[4, 5]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 5]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": START_NS + number * 1000 + 500,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
    }
    return {**made, **fields}


def message(number: int, name: str, p2p: int, **fields: object) -> dict[str, object]:
    """One send or receive."""
    about = {"is_p2p": True, "p2p_seq_id": p2p, "collective_seq_id": 0, "input_sizes": [[3]], "output_sizes": [[3]]}
    return entry(number, name, **{**about, **fields})


def document(
    entries: Sequence[Mapping[str, object]], minor: int = 10, ranks: Sequence[int] = (0, 1), **fields: object
) -> dict[str, object]:
    """A whole dump of version 2.``minor``, whose default group has these ranks."""
    made: dict[str, object] = {
        "version": f"2.{minor}",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}},
        "nccl_version": "2.21.5",
        "comm_lib_version": "2.27.5",
        "pg_status": {"0": {"last_enqueued_collective": 2, "last_started_collective": -1}},
        "entries": [_of_version(one, minor) for one in entries],
    }
    if minor >= SINCE["comm_lib_version"]:
        del made["nccl_version"]
    return {**_of_version(made, minor), **fields}


def _of_version(fields: Mapping[str, object], minor: int) -> dict[str, object]:
    return {key: value for key, value in fields.items() if SINCE.get(key, 0) <= minor}


def plain(value: object) -> Any:
    """The same document of plain values, shared frames as dicts."""
    if isinstance(value, Shared):
        return dict(value.items)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    return [plain(part) for part in value] if isinstance(value, list) else value


def torch_pickle(value: object) -> bytes:
    """As torch's C++ writes it."""
    return TorchPickler().dump(value)


def json_dump(value: object) -> bytes:
    """As torch writes it: keys in order, no frames, 0 for a time that is not known, text for a group's status."""
    made = plain(value)
    assert isinstance(made, dict)
    for one in made.get("entries", ()):
        if isinstance(one, dict):
            one.pop("frames", None)
            for key in [key for key in one if key.startswith("time_discovered") and one[key] is None]:
                one[key] = 0
    return json.dumps(made, sort_keys=True).encode()


def _python_pickle(protocol: int) -> Callable[[object], bytes]:
    return lambda value: pickle.dumps(plain(value), protocol)


WRITERS: dict[str, Callable[[object], bytes]] = {
    "torch": torch_pickle,
    "json": json_dump,
    **{f"protocol {number}": _python_pickle(number) for number in range(pickle.HIGHEST_PROTOCOL + 1)},
}
"""Every way in which a dump is written: by torch, and by programs that read one and wrote it again."""
