"""The estimator beside measured nccl-tests rows, and the fit of its constants on them."""

import pytest

from benchmarks.fit_estimator import GUESSES, TARGET, Case, errors, fit, mean, mean_error, text
from benchmarks.measured import all_series
from simcoll.calibration import calibration, from_json
from simcoll.clusters import cluster
from simcoll.shape import shape_of

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
def test_the_constants_are_what_the_script_writes():
    """Rounded to three digits, as another platform's libm may differ in the last."""
    assert _rounded(text(fit(CASES))) == _rounded(TARGET.read_text(encoding="utf-8"))


def _rounded(constants):
    calibrated = from_json(constants)
    rows = [*calibrated.generations.values(), *calibrated.fabrics.values()]
    numbers = [calibrated.launch, calibrated.ring, calibrated.fill_nvls]
    numbers += [value for row in rows for value in (getattr(row, name) for name in row.__slots__)]
    return [f"{number:.2g}" for number in numbers]
