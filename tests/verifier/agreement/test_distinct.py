"""Distinct rows are those that numpy finds, with a table of small numbers as by sorting."""

from __future__ import annotations

import numpy as np
import pytest

from simcoll.verifier.agreement.distinct import distinct_rows


@pytest.mark.parametrize("most", [3, 1 << 20, 1 << 32])
@pytest.mark.parametrize("rows", [1, 40, 4000])
def test_distinct_rows_are_those_of_numpy(most: int, rows: int) -> None:
    columns = [np.random.default_rng(seed).integers(0, 3, rows) * (most // 3) for seed in range(4)]
    first, often, kind = distinct_rows(columns)
    _, place, count = np.unique(np.stack(columns), axis=1, return_index=True, return_counts=True)
    assert first.tolist() == place.tolist()
    assert often.tolist() == count.tolist()
    assert all((column[first][kind] == column).all() for column in columns)
