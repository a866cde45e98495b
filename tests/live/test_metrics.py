"""The metrics of jobs that left their files, and of 4,096 ranks; names and labels as Prometheus wants them."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed

from benchmarks.verify_boxes import Job
from benchmarks.verify_boxes import write_job as write_large_job
from simcoll.blackbox import BlackBoxWriter
from simcoll.live.metrics import METRICS, MOST_AWAITED, MOST_BLAMED, MOST_GROUPS, JobMetrics
from simcoll.live.now import Motion
from simcoll.live.watch import JobWatch
from tests.support.effort import lines_run
from tests.support.jobs import write_job, write_job_that_waits

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs" / "grafana" / "simcoll.json"


def samples(text):
    """Values by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parsed(text)
        for sample in family.samples
    }


def seen(folder, patience=None):
    watch, metrics = JobWatch(folder, patience), JobMetrics()
    job = watch.look()
    metrics.take(job, watch.tails)
    return job, metrics, watch


def test_a_job_with_a_finding(tmp_path):
    write_job(tmp_path / "job", wrong=[2])
    _, metrics, _ = seen(tmp_path / "job")
    found = samples(metrics.text())
    assert found["simcoll_findings", ("code", "SC104"), ("severity", "error")] == 1
    assert found["simcoll_rank_findings", ("code", "SC104"), ("rank", "2")] == 1
    assert {state: found["simcoll_job_state", ("state", state)] for state in ("moving", "standing", "ended")} == {
        "moving": 0,
        "standing": 0,
        "ended": 1,
    }
    assert found["simcoll_ranks", ("doing", "ended")] == 4
    assert found["simcoll_collectives_finished_total", ("group", "default_pg")] == 24
    assert found["simcoll_collectives_finished_total", ("group", "tp")] == 2 * 16
    assert found["simcoll_calls_total", ("op", "all_reduce")] == 4 * 8 * 2
    assert found["simcoll_call_bytes_total", ("op", "all_reduce")] == 4 * 8 * (800 + 12)
    assert found["simcoll_records_dropped_total",] == 0


def test_records_that_a_full_ring_dropped_are_counted(tmp_path):
    write_job(tmp_path / "job", rounds=20)
    _, metrics, _ = seen(tmp_path / "job")
    found = samples(metrics.text())
    assert found["simcoll_records_dropped_total",] == 4 * (20 * 6 - 64)
    assert sum(value for (name, *_), value in found.items() if name == "simcoll_calls_total") == 4 * 20 * 6


def test_a_job_that_stands_says_for_which_rank(tmp_path, monkeypatch):
    write_job_that_waits(tmp_path / "job")
    monkeypatch.setattr("simcoll.live.watch.Processes.gone", lambda *process: False)
    _, metrics, _ = seen(tmp_path / "job", 0.0)
    found = samples(metrics.text())
    assert found["simcoll_job_state", ("state", "standing")] == 1
    assert {key: value for key, value in found.items() if key[0] == "simcoll_rank_awaited_by_ranks"} == {
        ("simcoll_rank_awaited_by_ranks", ("rank", "3")): 3
    }
    assert found["simcoll_ranks", ("doing", "waits")] == 3


def test_a_group_whose_records_are_gone_keeps_its_count(tmp_path):
    write_job(tmp_path / "job")
    job, metrics, watch = seen(tmp_path / "job")
    before = metrics.text()
    metrics.take(replace(job, groups=[replace(view, finished=0) for view in job.groups[:1]]), watch.tails)
    assert metrics.text() == before


def test_before_any_rank_has_recorded_there_is_no_state():
    found = samples(JobMetrics().text())
    assert {key[0] for key in found} == {"simcoll_job_state"}
    assert set(found.values()) == {0}


def test_both_formats_are_valid(tmp_path):
    write_job(tmp_path / "job", wrong=[2])
    _, metrics, _ = seen(tmp_path / "job")
    plain = {family.name for family in parsed(metrics.text())}
    said = openmetrics(metrics.registry()).decode()
    assert {family.name for family in parsed_openmetrics(said)} == {name.removesuffix("_total") for name in plain}
    assert said.endswith("# EOF\n")
    assert len(plain) == len(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_name_is_as_prometheus_wants_it(name):
    about, labels = METRICS[name]
    assert re.fullmatch(r"simcoll_[a-z_]+[a-z]", name)
    assert name.endswith(("_total", "_seconds", "_ratio", "_per_second", "_info")) or labels
    assert about.endswith(".")
    assert "\n" not in about
    assert all(re.fullmatch(r"[a-z]+", label) for label in labels)


def test_texts_of_records_are_harmless_and_bounded(tmp_path):
    write_job(tmp_path / "job")
    job, metrics, watch = seen(tmp_path / "job")
    group = job.groups[0].group
    texts = ['a\n\ud800\x1b[31m"\\', *(f"{number}-{'x' * 500}" for number in range(100))]
    views = [
        replace(job.groups[0], group=replace(group, name=str(number), description=text))
        for number, text in enumerate(texts)
    ]
    metrics.take(replace(job, groups=views, mode="m" * 10_000), watch.tails)
    found = samples(metrics.text())
    groups = [dict(key[1:])["group"] for key in found if key[0] == "simcoll_collectives_finished_total"]
    assert len(groups) == MOST_GROUPS + 1
    assert max(map(len, groups)) <= 64
    assert len(metrics.text()) < 20_000


def test_few_ranks_are_named_as_awaited(tmp_path):
    write_job(tmp_path / "job")
    job, metrics, watch = seen(tmp_path / "job")
    ranks = [replace(one, waits_for=tuple(range(1000))) for one in job.ranks]
    metrics.take(replace(job, ranks=ranks, motion=Motion.STANDING), watch.tails)
    assert sum(key[0] == "simcoll_rank_awaited_by_ranks" for key in samples(metrics.text())) == MOST_AWAITED


def test_few_ranks_are_named_as_culprits(tmp_path):
    write_job(tmp_path / "job", wrong=[2])
    job, metrics, watch = seen(tmp_path / "job")
    findings = [replace(job.findings[0], culprits=tuple(range(first, first + 1000))) for first in (7, 0)]
    metrics.take(replace(job, findings=findings), watch.tails)
    found = {key: value for key, value in samples(metrics.text()).items() if key[0] == "simcoll_rank_findings"}
    assert {dict(key[1:])["rank"] for key in found} == {str(rank) for rank in range(7, 7 + MOST_BLAMED)}
    assert set(found.values()) == {2}


@pytest.mark.slow
def test_thousands_of_ranks_take_few_series_and_as_much_work_as_their_number(tmp_path):
    work = []
    for count in (1024, 4096):
        write_large_job(Job("groups", count, 200), tmp_path / f"job{count}")
        _, metrics, watch = seen(tmp_path / f"job{count}")

        def look(metrics=metrics, watch=watch):
            job = watch.look()
            ranks = [replace(one, waiting=0.25, late=0.125) for one in job.ranks]
            metrics.take(replace(job, ranks=ranks), watch.tails)
            metrics.text()

        work.append(lines_run(look))
        found = samples(metrics.text())
        by_rank = [key for key in found if any(label == "rank" for label, _ in key[1:])]
        assert len(by_rank) == 2 * count
        assert len(found) - len(by_rank) < 150
    assert work[1] < 4.4 * work[0]


def test_the_page_lists_every_metric():
    listed = re.findall(r"^\| `(simcoll_\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    assert set(listed) == set(METRICS)


def expressions(document):
    """Every expression in a dashboard, and every query of its variables."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(document, list):
        for value in document:
            yield from expressions(value)


def test_the_dashboard_shows_every_metric_and_asks_for_labels_that_exist():
    document = json.loads(DASHBOARD.read_text())
    named = set()
    for expression in expressions(document):
        names = set(re.findall(r"\bsimcoll_\w+", expression))
        named |= names
        assert names <= set(METRICS), expression
        labels = {label for name in names for label in METRICS[name][1]} | {"job", "instance"}
        used = set(re.findall(r"[{,]\s*(\w+)\s*=", expression))
        used |= {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", group)}
        assert used <= labels, expression
    assert named == set(METRICS)
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel.get("targets", [1]) for panel in panels)


def test_steps_are_those_that_every_rank_has_ended(tmp_path):
    write_job(tmp_path / "job")
    for rank, steps in enumerate((7, 5)):
        box = BlackBoxWriter(tmp_path / f"rank{rank:05d}.simcoll", rank=rank, world_size=2, mode="record", records=16)
        for _ in range(steps):
            box.step()
    _, metrics, _ = seen(tmp_path / "job")
    assert ("simcoll_job_steps_total",) not in samples(metrics.text())
    shutil.rmtree(tmp_path / "job")
    _, metrics, _ = seen(tmp_path)
    assert samples(metrics.text())["simcoll_job_steps_total",] == 5
