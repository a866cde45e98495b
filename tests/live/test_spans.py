"""A span for each collective in which a job stands, by the SDK's own exporter."""

from dataclasses import replace
from itertools import pairwise

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from simcoll.blackbox import BlackBoxWriter
from simcoll.live.now import Motion
from simcoll.live.spans import MOST_SPANS, StandingSpans, StepSpans
from simcoll.live.watch import JobWatch
from tests.support.jobs import write_job_that_waits


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield StandingSpans(provider.get_tracer("simcoll"))
    provider.shutdown()


@pytest.fixture
def standing(tmp_path, monkeypatch):
    """A job of which rank 3 has not come to collective 2."""
    write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    job = JobWatch(tmp_path / "job", 0.0).look()
    assert job.motion is Motion.STANDING
    return job


def later(job, motion, *, finished=1):
    groups = [replace(view, finished=finished, came=view.came if finished == 1 else ()) for view in job.groups]
    return replace(job, time_ns=job.time_ns + 10**9, motion=motion, groups=groups)


def test_a_collective_that_goes_on_is_one_span(exporter, spans, standing):
    spans.take(standing)
    spans.take(standing)
    assert exporter.get_finished_spans() == ()
    spans.take(later(standing, Motion.MOVING, finished=2))
    (span,) = exporter.get_finished_spans()
    assert span.name == "all_reduce stands"
    assert span.status.status_code is StatusCode.UNSET
    assert span.end_time == standing.time_ns + 10**9
    assert standing.time_ns - span.start_time == pytest.approx(standing.groups[0].for_seconds * 1e9, abs=1000)
    said = span.attributes
    assert (said["simcoll.group"], said["simcoll.sequence"]) == ("default_pg", 2)
    assert (said["simcoll.came"], said["simcoll.absent"]) == ((0, 1, 2), (3,))
    assert (said["code.file.path"], said["code.line.number"]) == ("train.py", 11)


@pytest.mark.parametrize("how", ["ended", "closed"])
def test_a_collective_that_is_never_finished_is_an_error(exporter, spans, standing, how):
    spans.take(standing)
    if how == "ended":
        spans.take(later(standing, Motion.ENDED))
    else:
        spans.close()
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


def test_a_job_that_moves_has_none(exporter, spans, standing):
    spans.take(later(standing, Motion.MOVING))
    spans.close()
    assert exporter.get_finished_spans() == ()


def test_another_collective_is_another_span(exporter, spans, standing):
    spans.take(standing)
    (view,) = standing.groups
    spans.take(replace(standing, groups=[replace(view, finished=2)]))
    assert [span.attributes["simcoll.sequence"] for span in exporter.get_finished_spans()] == [2]
    spans.close()
    assert [span.attributes["simcoll.sequence"] for span in exporter.get_finished_spans()] == [2, 3]


def test_thousands_of_groups_make_few_spans(exporter, spans, standing):
    (view,) = standing.groups
    views = [replace(view, group=replace(view.group, name=str(number))) for number in range(1000)]
    spans.take(replace(standing, groups=views))
    spans.close()
    assert len(exporter.get_finished_spans()) == MOST_SPANS


def test_a_step_that_ends_while_one_looks_is_a_span(tmp_path, exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = StepSpans(provider.get_tracer("simcoll"))
    box = BlackBoxWriter(tmp_path / "rank00000.simcoll", rank=0, world_size=1, mode="record", records=16)
    watch = JobWatch(tmp_path)
    spans.take(watch.look())
    for ended in (2, 2, 300):
        for _ in range(ended):
            box.step()
        spans.take(watch.look())
        spans.take(watch.look())
    found = exporter.get_finished_spans()
    numbers = [span.attributes["simcoll.step"] for span in found]
    assert numbers == [*range(2, 256), *range(256, 305, 2)]  # the first has no begin
    assert [span.attributes["simcoll.steps"] for span in found[-26:]] == [1, 1, *[2] * 24]
    assert all(one.end_time == other.start_time for one, other in pairwise(found))
    assert found[0].name == "step"


def test_steps_before_the_first_look_have_no_span(tmp_path, exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = StepSpans(provider.get_tracer("simcoll"))
    box = BlackBoxWriter(tmp_path / "rank00000.simcoll", rank=0, world_size=1, mode="record", records=16)
    for _ in range(5):
        box.step()
    watch = JobWatch(tmp_path)
    spans.take(watch.look())
    box.step()
    spans.take(watch.look())
    assert [span.attributes["simcoll.step"] for span in exporter.get_finished_spans()] == [6]


def test_a_job_that_is_started_again_loses_no_step(tmp_path, exporter):
    """Its new attempt has marked more steps than had been told before one looks again."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = StepSpans(provider.get_tracer("simcoll"))
    for attempt, ended in (("0", 3), ("1", 5)):
        folder = tmp_path / attempt
        folder.mkdir()
        box = BlackBoxWriter(folder / "rank00000.simcoll", rank=0, world_size=1, mode="record", records=16)
        for _ in range(ended):
            box.step()
        spans.take(JobWatch(folder).look())
    assert [span.attributes["simcoll.step"] for span in exporter.get_finished_spans()] == [2, 3, 4, 5]
