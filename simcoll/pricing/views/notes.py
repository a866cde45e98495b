"""Notes shown with a job's price: gaps in the records, and how they were filled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcoll.core.ranges import ranks_text
from simcoll.core.record import State
from simcoll.core.trace import Trace, once_alike, slots_key
from simcoll.core.units import counted
from simcoll.pricing.compute import Counted, measured
from simcoll.pricing.job import RecordedJob
from simcoll.pricing.price import Pricing, PricingScenario
from simcoll.pricing.rank_program import WAIT
from simcoll.pricing.views.summary import flops_of_step, overlapping_calls

_PROBLEMS = 5


def notes_of(traces: Sequence[Trace], job: RecordedJob, scenario: PricingScenario) -> list[str]:
    """Returns what the records leave open, a sentence each."""
    return [*_damage(traces, job), *_gaps(job), *_of_compute(traces, job, scenario)]


def _damage(traces: Sequence[Trace], job: RecordedJob) -> Iterator[str]:
    absent = sorted(set(range(job.world_size)) - set(job.ranks))
    if absent:
        yield f"{ranks_text(absent)} left no record: their groups are priced with them, and nobody waits for them"
    cut = [trace.rank for trace in traces if trace.dropped or trace.dropped_p2p]
    if cut:
        yield f"the first records of {ranks_text(cut)} are gone: what is left is priced"
    open_calls = sum(once_alike(traces, lambda trace: int((trace.slots["state"] < State.COMPLETED).sum()), slots_key))
    if open_calls:
        they = "it is" if open_calls == 1 else "they are"
        yield f"{counted(open_calls, 'call')} had not ended when the records did; {they} priced as if ended"
    problems = [f"rank {trace.rank}: {problem}" for trace in traces for problem in trace.problems]
    yield from problems[:_PROBLEMS]
    if len(problems) > _PROBLEMS:
        yield f"{len(problems) - _PROBLEMS:,} more things in the records cannot be read"


def _gaps(job: RecordedJob) -> Iterator[str]:
    if job.left_out:
        yield f"{job.left_out:,} sends or receives without a known other end are left out"
    if job.untyped:
        yield f"{job.untyped:,} calls have a dtype of unknown width, and are priced as if they had no bytes"
    if job.steps and all(steps is None for steps in job.steps):
        yield "no period found: no sequence of calls repeats itself three times, so that there are no steps to show"


def _of_compute(traces: Sequence[Trace], job: RecordedJob, scenario: PricingScenario) -> Iterator[str]:
    if not isinstance(scenario.compute, Counted) and scenario.compute is not measured:
        return
    if job.counted:
        yield _counted(job, scenario)
    elif not any(program.seen for program in job.programs):
        yield "the records have no times: no compute is known; give --compute SECONDS, or --flops and --gpu-peak"
    elif any(_is_on_device(trace) for trace in traces[:1]):
        yield (
            "compute is measured by the host's clock: where the host ran ahead of its GPU, the GPU took longer; "
            "--compute SECONDS or --flops and --gpu-peak say it otherwise"
        )


def _counted(job: RecordedJob, scenario: PricingScenario) -> str:
    column = next(column for column, program in enumerate(job.programs) if program.work is not None)
    flops, steps = flops_of_step(job, column), job.steps[column]
    counted = (
        f"compute is counted: {flops:.4g} FLOPs of rank {job.ranks[column]} {'in all' if steps is None else 'a step'}, "
    )
    if isinstance(scenario.compute, Counted) and scenario.compute.reached is not None:
        return (
            f"{counted}at the rates that simcoll plan has from measured steps, and what its operators read and "
            "write at such a rate of its memory; --mfu gives a share of the GPU's peak instead"
        )
    share = scenario.compute.share if isinstance(scenario.compute, Counted) else 1.0
    return (
        f"{counted}at {share:.0%} of the GPU's peak for their dtype (--mfu, --gpu-peak), or what its operators read "
        "and write, at the bandwidth of its memory, whichever takes longer"
    )


def _is_on_device(trace: Trace) -> bool:
    return any(
        buffer.device not in ("cpu", "") for call in trace.signatures for buffer in (*call.inputs, *call.outputs)
    )


def notes_on_replay(priced: Pricing) -> list[str]:
    """Returns what a replay could not do as it was recorded, or not as it was asked for."""
    notes = []
    done = priced.replayed
    let_go = sum(map(len, done.let_go))
    if let_go:
        notes.append(
            f"{let_go:,} sends or waits do not hold their ranks up, or nobody could go on: messages were "
            "buffered, or the job waited elsewhere"
        )
    if done.cut_short:
        notes.append(
            f"{done.cut_short:,} collectives run without ranks that come to them only later: the ranks made their "
            "calls in orders that contradict each other"
        )
    if priced.prices.substituted:
        notes.append(
            f"{priced.prices.substituted:,} kinds of calls cannot run with the algorithm or protocol that was asked "
            "for, and run as NCCL would choose"
        )
    if overlapping_calls(priced):
        waits = sum(int((program.kind == WAIT).sum()) for program in priced.job.programs)
        notes.append(
            f"{waits:,} calls did not block their ranks: they are waited for where the records show it, else at the "
            "end of the step"
        )
    return notes
