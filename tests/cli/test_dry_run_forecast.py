"""How long the ranks of a dry run are going to take is said once, where it is long."""

from pathlib import Path

from simcoll.cli.dry_run import Forecast
from simcoll.dryrun.rank.settings import DryRun


def said(seconds_each, total=64, chosen=False, **settings):
    """What is said in a dry run whose ranks take so many seconds each."""
    lines: list[str] = []
    passed: list[tuple[int, int]] = []
    now = [0.0]
    dry_run = DryRun(Path("train.py"), [], total, 8, Path(), **settings)
    forecast = Forecast(dry_run, lines.append, lambda *progress: passed.append(progress), lambda: now[0], chosen=chosen)
    for done in range(1, total + 1):
        now[0] += seconds_each
        forecast.update(done, total)
    assert passed == [(done, total) for done in range(1, total + 1)]
    return lines


def test_a_long_dry_run_is_announced_with_what_makes_it_shorter():
    (line,) = said(3.0)
    assert line.startswith("63 more ranks take about 4 minutes; ")
    assert "--steps 1" in line
    assert "--fake-tensors" in line


def test_a_quick_one_is_not():
    assert said(0.5) == []


def test_options_that_are_given_are_not_advised():
    (line,) = said(30.0, steps=2, fake_tensors=True)
    assert "--steps" not in line
    assert "--fake-tensors" not in line
    assert "--ranks" in line


def test_ranks_that_were_chosen_are_not_advised_again():
    (line,) = said(3.0, chosen=True)
    assert line.endswith("--fake-tensors leaves out the computation of large tensors")
    assert said(30.0, chosen=True, steps=2, fake_tensors=True) == ["63 more ranks take about 32 minutes"]


def test_before_a_rank_has_ended_nothing_is_said():
    lines: list[str] = []
    Forecast(DryRun(Path("train.py"), [], 64, 8, Path()), lines.append, clock=iter([0.0, 90.0]).__next__).update(0, 64)
    assert lines == []
