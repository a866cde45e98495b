"""A priced job as JSON, schema ``simcoll.pricing/1``; docs/pricing.md describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from simcoll.pricing.price import Pricing
from simcoll.pricing.views.summary import StepCosts, compute_of, groups_of, kinds_of, links_of, steps_of_rank, totals_of

SCHEMA = "simcoll.pricing/1"

LISTED = 10_000
"""So many collectives, and steps, of each scenario are listed; the rest is counted."""


def pricing_document(scenarios: Sequence[Pricing], notes: Sequence[str], warnings: Sequence[str]) -> dict[str, object]:
    """Every scenario; the first is the one that the others are compared with."""
    first = scenarios[0].job
    return {
        "schema": SCHEMA,
        "world_size": first.world_size,
        "ranks_with_records": len(first.ranks),
        "notes": list(notes),
        "warnings": list(warnings),
        "scenarios": [_scenario(priced, scenarios[0].seconds) for priced in scenarios],
    }


def _scenario(priced: Pricing, first_seconds: float) -> dict[str, object]:
    job = priced.job
    return {
        "name": priced.name,
        "topology": priced.topology,
        "world_size": job.world_size,
        "seconds": priced.seconds,
        "ratio": priced.seconds / first_seconds if first_seconds else None,
        "calls": job.calls,
        "totals": asdict(totals_of(priced)),
        "steps": _steps(steps_of_rank(priced)),
        "kinds": [asdict(kind) | {"estimate": kind.estimate.as_json()} for kind in kinds_of(priced)],
        "groups": [asdict(group) for group in groups_of(priced)],
        "links": [asdict(link) | {"source": str(link.source), "target": str(link.target)} for link in links_of(priced)],
        "ranks": _ranks(priced),
        "collectives": _collectives(priced),
        "collectives_left_out": max(int((job.collectives.came > 0).sum()) - LISTED, 0),
    }


def _steps(found: StepCosts | None) -> object:
    if found is None:
        return None
    volumes = [asdict(volume) for volume in found.volumes]
    return {
        "rank": found.rank,
        "calls": found.period,
        "count": len(found.steps),
        "flops": found.flops,
        "volumes": volumes,
        "steps": [asdict(step) for step in found.steps[:LISTED]],
    }


def _ranks(priced: Pricing) -> list[dict[str, object]]:
    done = priced.replayed
    compute, *slowed = compute_of(priced)
    columns = done.rank_end, compute, done.rank_exposed, done.rank_waited, *slowed
    rows = zip(priced.job.ranks, *(column.tolist() for column in columns), strict=True)
    names = "rank", "end", "compute", "exposed", "waiting", "stragglers", "contention"
    return [dict(zip(names, row, strict=True)) for row in rows]


def _collectives(priced: Pricing) -> list[dict[str, object]]:
    """In order of their begin. A collective's ``group`` is by name; a message has its sender and receiver as ranks."""
    all_of, done = priced.job.collectives, priced.replayed
    order = np.argsort(done.begin, kind="stable")
    return [_collective(priced, int(number)) for number in order[all_of.came[order] > 0][:LISTED]]


def _collective(priced: Pricing, number: int) -> dict[str, object]:
    all_of, done = priced.job.collectives, priced.replayed
    estimate, stream = priced.prices.estimates[priced.prices.which[number]], priced.job.streams[all_of.stream[number]]
    late, link = int(done.latecomer[number]), estimate.bottleneck
    return {
        "op": estimate.op,
        "bytes": estimate.bytes,
        "group": stream.group.name,
        "ranks": len(stream.ranks),
        "message": list(stream.ranks) if stream.message else None,
        "sequence": int(all_of.sequence[number]),
        "begin": float(done.begin[number]),
        "seconds": float(done.end[number] - done.begin[number]),
        "alone_seconds": estimate.seconds,
        "exposed": float(done.exposed[number]),
        "waiting": float(done.waited[number]),
        "last_rank": priced.job.ranks[late] if late >= 0 else None,
        "algorithm": estimate.algorithm,
        "protocol": estimate.protocol,
        "bottleneck": None if link is None else f"{link.link} {link.source} -> {link.target}",
    }
