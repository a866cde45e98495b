"""The steps of ranks with the same sequence of calls are looked for once."""

from benchmarks.verify_boxes import Job, write_job
from simcoll.blackbox.gather import gather
from simcoll.cli.records import judged
from simcoll.verifier.views import steps


def test_the_sides_of_a_finding_are_asked_once(tmp_path, monkeypatch):
    asked = []

    def period_of(tokens):
        asked.append(len(tokens))
        return found(tokens)

    found = steps.period_of
    monkeypatch.setattr(steps, "period_of", period_of)
    write_job(Job("each unlike", 12, 96), tmp_path / "job")
    report, _ = judged(gather([tmp_path / "job"], workers=0))
    (finding,) = report.findings
    assert len(finding.sides) > 1
    assert finding.step is not None
    assert asked == [96]
