"""docs/black-box.md states the bytes that the code reads and writes."""

import re
from pathlib import Path

import pytest

from simcoll.blackbox import format as layout

PAGE = (Path(__file__).parents[2] / "docs" / "black-box.md").read_text(encoding="utf-8")
TYPES = {"Q": "u64", "I": "u32", "H": "u16", "B": "u8", "8s": "8 bytes", "4s": "4 bytes"}


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("header", layout.HEADER_FIELDS),
        ("counters", layout.COUNTER_FIELDS),
        ("groups", layout.GROUP_FIELDS),
        ("slots", layout.SLOT_FIELDS),
        ("entries", layout.ENTRY_FIELDS),
    ],
)
def test_the_tables_of_the_page_are_the_structs(title, fields):
    section = PAGE.split(f"<!-- {title} -->")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([\w ]+?) \|", section, re.MULTILINE)
    expected = [(str(layout.offset_of(fields, name)), name, TYPES[code]) for name, code in fields]
    assert rows == expected


def test_the_page_states_the_sizes():
    sizes = (layout.PAGE, layout.SLOT.size, layout.GROUP.size, layout.COUNTERS_OFFSET, layout.ABOUT_OFFSET)
    assert sizes == (4096, 64, 16, 128, 160)
    assert f"{layout.MIN_SLOTS} to {layout.MAX_SLOTS:,}" in PAGE
    assert f"{layout.DEFAULT_SLOTS:,} slots" in PAGE
    assert f"{layout.initial_size() / (1 << 20):.1f} MiB" in PAGE
    assert f"{layout.TABLE_LIMIT >> 20} MiB" in PAGE


def test_parts_of_the_header_page_do_not_overlap():
    assert layout.HEADER.size <= layout.COUNTERS_OFFSET
    assert layout.COUNTERS_OFFSET + layout.COUNTERS.size <= layout.ABOUT_OFFSET
    assert layout.ring_offset(layout.GROUP_ROWS) % layout.PAGE == 0
