"""The estimator beside measured nccl-tests rows, and the fit of its constants on them."""

import pytest

from benchmarks.fit_estimator import GUESSES, Case, constants, errors, fit, mean, mean_error, text
from benchmarks.measured import all_series
from simcoll.estimator.calibration import calibration, from_json
from simcoll.estimator.shape import shape_of
from simcoll.topology.clusters import cluster

CASES = [Case(series, shape_of(cluster(**series.cluster))) for series in all_series()]


def test_every_row_is_in_one_series():
    assert sum(len(case.series.sizes) for case in CASES) == 211
    assert len({case.series.name for case in CASES}) == len(CASES)
    assert len({case.series.provider for case in CASES}) == 6


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.series.name)
def test_each_series_is_met_within_15_per_cent(case):
    assert mean(map(abs, errors(case, calibration()))) < 0.15


def test_all_rows_are_met_within_8_per_cent_and_large_ones_within_5():
    found = [
        (size, abs(error))
        for case in CASES
        for size, error in zip(case.series.sizes, errors(case, calibration()), strict=True)
    ]
    assert mean(error for _, error in found) < 0.08
    assert mean(error for size, error in found if size >= 1 << 26) < 0.05


def test_the_guesses_alone_are_no_fit():
    guessed = from_json(text({name: guess.value for name, guess in GUESSES.items()}))
    assert mean_error(CASES, guessed) > mean_error(CASES, calibration())


@pytest.mark.slow
def test_the_constants_are_as_good_as_what_the_script_finds():
    """Not the digits: a fit of many constants moves along a flat valley when a figure of the hardware is refined."""
    found = constants(fit(CASES))
    assert mean_error(CASES, calibration()) == pytest.approx(mean_error(CASES, found), rel=0.03)
    assert calibration().fabrics["ib"].bandwidth == pytest.approx(found.fabrics["ib"].bandwidth, rel=0.03)
    assert calibration().generations["hopper"].nvls == pytest.approx(found.generations["hopper"].nvls, rel=0.03)
