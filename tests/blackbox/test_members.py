"""Members of groups are written as runs, read back as they were, and bounded whatever a file states."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simcoll.blackbox.members import MOST_MEMBERS, KnownMembers, Room, members_document

RUN = st.builds(
    lambda first, count, step: [*range(first, first + count * step, step)],
    st.integers(0, 400),
    st.integers(1, 9),
    st.integers(1, 50),
)


def read_back(ranks):
    return KnownMembers().read(json.loads(json.dumps(members_document(ranks))), Room())


@given(st.lists(RUN, max_size=5), st.booleans())
@example([[3, 2, 1, 0]], True)
@example([[0, 1, 2, 3], [0, 1, 2, 3]], False)
@example([[5, 5, 5, 5]], False)
def test_members_are_read_back_as_they_were(runs, reverse):
    ranks = [rank for run in runs for rank in run]
    ranks = ranks[::-1] if reverse else ranks
    assert read_back(ranks) == tuple(ranks)


@pytest.mark.parametrize(
    ("ranks", "document"),
    [
        (range(16_384), [[0, 16_384, 1]]),
        (range(5, 4_096, 8), [[5, 512, 8]]),
        ([3, 0, 1], [3, 0, 1]),
        ([7, *range(8, 64, 16), 9], [7, [8, 4, 16], 9]),
        (range(9, -1, -1), [[9, 10, -1]]),
        ([], []),
        ([1, 1, 2, 3, 4], [1, 1, 2, 3, 4]),
    ],
)
def test_runs_are_short(ranks, document):
    assert members_document(ranks) == document
    assert read_back(ranks) == tuple(ranks)


@pytest.mark.parametrize(
    "document",
    [
        [[0, 10**18, 1]],
        [[10**18, 4, 1]],
        [[0, 4, 10**18]],
        [10**18],
        [[0, 4, -1]],
        [[0, 4, 0]],
        [[0, 0, 1]],
        [[0, -4, 1]],
        [[-1, 4, 1]],
        [-1],
        [[0, 8, 1], [4, 8, 1]],
        [[0, 8, 1], 3],
        [[0, 4]],
        [[0, 4, 1, 1]],
        [[0, 4.0, 1]],
        [[False, True, True]],
        [True],
        ["0"],
        [None],
        {"0": 1},
        None,
        "0-7",
        4,
    ],
)
def test_what_no_writer_writes_is_refused(document):
    with pytest.raises((ValueError, TypeError)):
        KnownMembers().read(document, Room())


def test_the_groups_of_a_file_state_no_more_members_than_a_table_has_room_for():
    known, room = KnownMembers(), Room()
    largest = [[[0, 1 << 20, 1]], [[(1 << 20) - 1, 1 << 20, -1]]]
    for document in largest:
        known.read(document, room)
    # What is known takes no more memory.
    assert known.read(largest[0], room) is known.read(largest[0], room)
    assert room.left == MOST_MEMBERS - (2 << 20)
    room.left = 7
    assert known.read([[0, 7, 1]], room) == (0, 1, 2, 3, 4, 5, 6)
    with pytest.raises(ValueError, match="members"):
        known.read([[0, 4, 2]], room)


def test_ranks_of_runs_are_shared():
    known, room = KnownMembers(), Room()
    first, second = known.read([[0, 600, 1]], room), known.read([[500, 100, 1]], room)
    assert first[599] is second[99]
