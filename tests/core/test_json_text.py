"""The text of a document is what json.dumps makes of it."""

import json
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.core.json_text import json_text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


class Number(IntEnum):
    ONE = 1


@given(VALUES)
def test_a_document_is_written_as_json_dumps_writes_it(document):
    assert json_text(document) == json.dumps(document, indent=2)


@pytest.mark.parametrize(
    "document", [(), (1, (2,)), {"a": ({}, [])}, Number.ONE, [Number.ONE, True, 1.5, float("inf")]]
)
def test_so_are_tuples_and_numbers_with_names(document):
    assert json_text(document) == json.dumps(document, indent=2)


@pytest.mark.parametrize("document", [{1: 2}, {None: 0}, [object()], {"a": {1, 2}}])
def test_what_is_no_json_is_refused(document):
    with pytest.raises(TypeError):
        json_text(document)
