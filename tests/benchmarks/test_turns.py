"""The ratio of jobs that take turns, and its bounds."""

from __future__ import annotations

from benchmarks.training import rows_of
from benchmarks.turns import ratio

# The machine is ten times as slow in every fourth round, and the other job a tenth slower than the plain one.
ROUNDS = [
    {
        name: {"wall": slow * share, "cpu": slow * share, "memory": 1.0}
        for name, share in (("plain", 1.0), ("other", 1.1))
    }
    for slow in [1.0, 10.0, 1.0, 1.0] * 5
]
SETS = [ROUNDS[:10], ROUNDS[10:]]


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    assert ratio(SETS, "other", "plain", "wall") == [1.1, 1.1, 1.1]


def test_a_round_that_hits_one_job_widens_the_bounds_alone() -> None:
    hit = [*ROUNDS, {"plain": ROUNDS[0]["plain"], "other": ROUNDS[1]["other"]}]
    middle, low, high = ratio([hit], "other", "plain", "cpu")
    assert low == 1.1 < middle < high


def test_a_job_that_was_started_slow_widens_the_bounds() -> None:
    slow = [{"plain": one["plain"], "other": {"cpu": 1.2 * one["other"]["cpu"]}} for one in ROUNDS]
    middle, low, high = ratio([ROUNDS, slow], "other", "plain", "cpu")
    assert (low, middle, high) == (1.1, 1.21, 1.32)


def test_a_row_has_the_seconds_of_a_plain_step() -> None:
    for row in rows_of("ddp", SETS, 2):
        assert (row.wrapper, row.sets, row.rounds, row.plain) == ("ddp", 2, 20, 0.5)
        assert row.ratios == {"other": [1.1, 1.1, 1.1]}
