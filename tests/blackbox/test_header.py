"""A header that is read beside those of other ranks gives what it gives alone."""

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from simcoll.blackbox import format as layout
from simcoll.blackbox.header import pack_header, unpack_header
from simcoll.blackbox.table import KnownEntries
from simcoll.errors import UnreadableError

PAGE = pack_header(1, 4, "record", 16).ljust(layout.PAGE, b"\0")
KNOWN = layout.COUNTERS_OFFSET + layout.COUNTERS.size


def read(page, known=None):
    try:
        return asdict(unpack_header(page, "rank1.simcoll", known))
    except UnreadableError as error:
        return str(error)


@given(st.lists(st.tuples(st.integers(0, KNOWN + 64), st.integers(0, 255)), max_size=3))
def test_a_damaged_page_reads_the_same_beside_a_sound_one(changes):
    known, page = KnownEntries(), bytearray(PAGE)
    read(PAGE, known)
    for place, value in changes:
        page[place] = value
    assert read(bytes(page), known) == read(bytes(page))


def test_pages_of_ranks_are_told_apart():
    known = KnownEntries()
    pages = [pack_header(rank, 4, "record", 16).ljust(layout.PAGE, b"\0") for rank in range(4)]
    assert [unpack_header(page, "", known).rank for page in pages] == [0, 1, 2, 3]
    assert len(known.shapes) == 1


def test_a_rank_that_its_job_does_not_have_is_damage_beside_others_too():
    known = KnownEntries()
    read(PAGE, known)
    page = pack_header(4, 4, "record", 16).ljust(layout.PAGE, b"\0")
    assert "sound" in read(page, known)
