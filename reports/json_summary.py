"""The summary, and what every part of a report is made of (groups, records, lines), as JSON values."""

from __future__ import annotations

from simcoll.core.record import Group, Record, Source
from simcoll.verifier.findings.overview import Bandwidth, Place, Progress, Summary


def group_document(group: Group) -> dict[str, object]:
    """A process group."""
    return {"name": group.name, "description": group.description, "ranks": list(group.ranks)}


def source_document(source: Source) -> dict[str, object]:
    """A line of the user's program."""
    return {"file": source.file, "line": source.line, "function": source.function, "code": source.code}


def record_document(record: Record) -> dict[str, object]:
    """A call as a rank wrote it down: where it stands in its group, and how far it came."""
    return {
        "group": record.group,
        "sequence": record.sequence,
        "op": record.call.op,
        "state": record.state.name.lower(),
        "source": source_document(record.source) if record.source.file else None,
    }


def summary_document(summary: Summary) -> dict[str, object]:
    """What the job was doing; times are seconds since 1970 (UTC), null where no record has one."""
    return {
        "world_size": summary.world_size,
        "recorded": summary.recorded,
        "kinds": list(summary.kinds),
        "begin": seconds(summary.begin_ns),
        "end": seconds(summary.end_ns),
        "unknown": list(summary.unknown),
        "groups": [_progress(progress) for progress in summary.progress],
        "places": [_place(place) for place in summary.places],
        "bandwidths": [_bandwidth(bandwidth) for bandwidth in summary.bandwidths],
    }


def seconds(time_ns: int) -> float | None:
    """A time as seconds since 1970; None where it is not known."""
    return time_ns / 1e9 if time_ns else None


def _progress(progress: Progress) -> dict[str, object]:
    return {
        "description": progress.description,
        "size": progress.size,
        "names": [group.name for group in progress.groups],
        "ranks": list(progress.members),
        "finished": None if progress.least is None else record_document(progress.least),
        "farthest": None if progress.most is None else record_document(progress.most),
        "unrecorded": progress.unrecorded,
    }


def _bandwidth(bandwidth: Bandwidth) -> dict[str, object]:
    return {
        "op": bandwidth.op,
        "bytes": bandwidth.bytes,
        "description": bandwidth.description,
        "size": bandwidth.size,
        "calls": bandwidth.calls,
        "seconds": bandwidth.seconds,
        "bus_bandwidth": bandwidth.bus_bandwidth,
        "slowest": {"seconds": bandwidth.slowest, "group": bandwidth.group.name, "sequence": bandwidth.sequence},
    }


def _place(place: Place) -> dict[str, object]:
    return {
        "ranks": list(place.ranks),
        "activity": place.activity.value,
        "state": place.process,
        "group": None if place.group is None else place.group.name,
        "groups": place.groups,
        "call": None if place.record is None else record_document(place.record),
        "message": (place.record.p2p_sequence or None) if place.record is not None else None,
        "inside": place.inside,
        "line": source_document(place.line) if place.line.file else None,
        "since": seconds(place.since_ns),
        "reason": place.reason,
    }
