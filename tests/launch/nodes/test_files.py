"""The files of a node: their names, their chunks, and copies that are brought up to date."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simcoll.blackbox.accounts import LaunchAccount, LaunchedRank
from simcoll.launch.nodes import files as module
from simcoll.launch.nodes.files import BOX, FileKey, Listed, Staging, chunk_of, listed, own_files
from simcoll.launch.nodes.wire import CHUNK, WireError

LAUNCH = LaunchAccount((LaunchedRank(2, None), LaunchedRank(3, None)))


def test_the_last_attempt_of_each_rank_is_a_nodes_own_file(tmp_path: Path) -> None:
    account = tmp_path / "launch-b-7.json"
    names = ["rank00002.simcoll", "rank00002.attempt9.simcoll", "rank00002.attempt10.simcoll", "rank00003.simcoll"]
    for name in [*names, "rank00020.simcoll", account.name, "stall-b-7.json", "stall-b-8.json"]:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "flight_recorder_rank_3").write_text('{"entries": [], "version": "2.10"}')
    (tmp_path / "flight_recorder_rank_4").write_text('{"entries": [], "version": "2.10"}')
    found = own_files(tmp_path, account, LAUNCH, 0)
    assert {key.name(1): path.name for key, path in found.items()} == {
        "rank00002.attempt10.simcoll": "rank00002.attempt10.simcoll",
        "rank00003.simcoll": "rank00003.simcoll",
        "flight_recorder_rank_3": "flight_recorder_rank_3",
        "launch-node1.json": account.name,
        "stall-node1.json": "stall-b-7.json",
    }
    os.utime(tmp_path / "rank00003.simcoll", ns=(1, 1))
    assert FileKey(BOX, 3) not in own_files(tmp_path, account, LAUNCH, 2)


def test_an_attempt_of_an_earlier_run_is_not_taken_for_this_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = {"rank00002.simcoll": 10, "rank00002.attempt2.simcoll": 5}
    monkeypatch.setattr(module, "created_ns", lambda path: created[path.name])
    for name in created:
        (tmp_path / name).write_bytes(b"x")
    found = own_files(tmp_path, tmp_path / "launch-b-7.json", LAUNCH, 7)
    assert {key: path.name for key, path in found.items()} == {FileKey(BOX, 2): "rank00002.simcoll"}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        ["box", 1],
        ["box", "../1", 0],
        ["../box", 1, 0],
        ["box", -1, 0],
        ["box", 1 << 40, 0],
        ["box", 1, 1 << 40],
        ["launch", 1, 0],
        [["box"], 1, 0],
    ],
)
def test_a_peers_name_of_a_file_is_checked(value: object) -> None:
    with pytest.raises(WireError):
        FileKey.of(value)


@pytest.mark.parametrize(
    "value", [[["box", 1, 0], 1 << 40, []], [["box", 1, 0], CHUNK, []], [["box", 1, 0], 1, ["", ""]], 1]
)
def test_a_peers_list_of_chunks_is_checked(value: object) -> None:
    with pytest.raises(WireError):
        Listed.of(value)


def test_ranks_of_others_are_not_taken(tmp_path: Path) -> None:
    staging = Staging(tmp_path, 1)
    theirs, others = Listed(FileKey(BOX, 2), 0, ()), Listed(FileKey(BOX, 0), 0, ())
    assert staging.take([theirs, others], {2, 3}) == [theirs]
    with pytest.raises(WireError, match="more than"):
        staging.take([theirs] * (module.MOST_FILES + 1), {2})


def brought(staging: Staging, path: Path) -> int:
    """Bring the copy of a file up to date; how many chunks that took."""
    count = 0
    for file in staging.take(listed({FileKey(BOX, 2): path}), {2}):
        for number in staging.lacking(file):
            staging.put(file.key, number, chunk_of(path, number))
            count += 1
    return count


def test_a_copy_is_brought_up_to_date_by_what_has_changed(tmp_path: Path) -> None:
    path, staging = tmp_path / "box", Staging(tmp_path / "drafts", 1)

    def steps(data: bytes, chunks: int) -> None:
        path.write_bytes(data)
        assert brought(staging, path) == chunks
        assert staging.paths()[0].read_bytes() == data
        assert brought(staging, path) == 0

    zeros, ones = bytes(CHUNK), b"1" * CHUNK
    steps(ones + zeros + ones, 2)
    steps(ones + ones + ones, 1)
    steps(ones + zeros + ones + b"end", 1)
    steps(ones + zeros + b"short", 1)
    steps(ones + zeros + ones, 1)
    steps(b"", 0)
    steps(zeros + b"\0", 0)
    staging.adopt(tmp_path, {2})
    assert (tmp_path / "rank00002.simcoll").read_bytes() == zeros + b"\0"


def test_a_transfer_that_broke_off_is_gone_on_with(tmp_path: Path) -> None:
    path, staging = tmp_path / "box", Staging(tmp_path / "drafts", 1)
    path.write_bytes(b"".join(bytes([number]) * CHUNK for number in range(1, 5)))
    [file] = staging.take(listed({FileKey(BOX, 2): path}), {2})
    for number in staging.lacking(file)[:3]:
        staging.put(file.key, number, chunk_of(path, number))
    assert brought(staging, path) == 1
    assert staging.paths()[0].read_bytes() == path.read_bytes()
