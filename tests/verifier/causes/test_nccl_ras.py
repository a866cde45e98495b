"""The documents that ``ncclras -f json`` prints; the first is written after the sample of NCCL's user guide."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcoll.verifier.causes.facts import RasRank
from simcoll.verifier.causes.nccl_ras import ras_ranks

ADDRESS = "172.16.64.245"


def entry(rank: int, pid: int, **status: object) -> dict[str, object]:
    return {"rank": rank, "host": ADDRESS, "pid": pid, "cuda_dev": rank, "nvml_dev": rank, "status": status}


def document() -> dict[str, Any]:
    fine = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    counts = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 0}
    communicator = {
        "hash": "0xae94423cfbb2ef4a",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": 2,
        "ranks_count": 1,
        "missing_ranks_count": 1,
        "ranks": [entry(0, 1524344, **fine) | {"collective_counts": counts}],
        "missing_ranks": [entry(1, 1524345, unresponsive=True, considered_dead=False)],
    }
    return {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2025-12-19 13:06:53",
        "communicators_count": 1,
        "communicators": [communicator],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }


def test_ranks_and_missing_ranks() -> None:
    assert ras_ranks(json.dumps(document())) == (
        RasRank(0, ADDRESS, 1524344),
        RasRank(1, ADDRESS, 1524345, missing=True, unresponsive=True),
    )


def test_a_comma_that_lacks_before_a_key() -> None:
    """As NCCL 2.28.9 prints missing ranks."""
    whole = json.dumps(document(), indent=2)
    for field in ("rank", "host", "pid", "nvml_dev"):
        before, _, missing = whole.partition('"missing_ranks": [')
        lines = missing.splitlines()
        lines = [line.removesuffix(",") if line.strip().startswith(f'"{field}":') else line for line in lines]
        text = before + '"missing_ranks": [' + "\n".join(lines)
        with pytest.raises(ValueError, match="delimiter"):
            json.loads(text)
        assert ras_ranks(text) == ras_ranks(whole)


def test_an_asynchronous_error() -> None:
    said = document()
    said["communicators"][0]["ranks"][0]["status"]["async_error"] = 6
    found = ras_ranks(json.dumps(said))
    assert found is not None
    assert found[0].error == 6


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"nccl_version": "2.29.1"}', "not json", "[" * 100_000])
def test_other_texts_are_none(text: str) -> None:
    assert ras_ranks(text) is None


def test_damaged_entries_are_passed_over() -> None:
    said = document()
    said["communicators"] += [7, {"ranks": 3}, {"ranks": [None, {"rank": "0"}, entry(1, 2) | {"status": None}]}]
    found = ras_ranks(json.dumps(said))
    assert found is not None
    assert len(found) == 2
