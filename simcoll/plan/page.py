"""A plan as a page: time and memory by part, and the fewest GPUs for each step time, with the price of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simcoll.core.units import counted, show_seconds
from simcoll.plan.layout import Layout
from simcoll.plan.memory import GIB
from simcoll.plan.planning import Plan
from simcoll.reports.page_shell import PageTable
from simcoll.reports.price_page import Bar, Bars, Fact, Sheet, curve_of

_LEAST = 0.001
"""A part of less is not shown."""

_TIMES = "compute", "communication that nothing hides", "waiting and fixed"
_IDLE: Mapping[str, int] = {"pipeline bubble": 2, "fixed": 2} | dict.fromkeys(
    ("tensor parallel", "context parallel", "expert parallel", "data parallel", "pipeline messages"), 1
)


def price_of(found: Plan, gpu_hour: float) -> float:
    """The cost of a million tokens at this price of a GPU hour."""
    return gpu_hour / 3600 / found.tokens_per_second_per_gpu * 1e6


def layout_text(layout: Layout) -> str:
    """Such as ``dp16 tp4 pp4x2 mb1 ZeRO1``: pipeline stages by their virtual stages, sequences of a micro-batch."""
    stages = f"{layout.pp}x{layout.virtual_stages}" if layout.virtual_stages > 1 else str(layout.pp)
    sizes = {"tp": str(layout.tp), "pp": stages, "cp": str(layout.cp), "ep": str(layout.ep)}
    parts = [f"dp{layout.data_parallel}", *(f"{name}{size}" for name, size in sizes.items() if size != "1")]
    return " ".join([*parts, f"mb{layout.micro_batch}", f"ZeRO{layout.zero}"])


def plan_title(found: Plan) -> str:
    """The model, the GPUs, the layout and the batch of a plan."""
    layout = found.layout
    place = f"{found.model.name} on {counted(layout.gpus, 'GPU')} ({found.gpu})"
    return f"{place}, {layout_text(layout)}, {layout.global_batch:,} x {layout.seq_len:,} tokens, {layout.dtype}"


def pareto(plans: Sequence[Plan]) -> list[Plan]:
    """The plans for which none with as few GPUs has as short a step, by GPUs."""
    front: list[Plan] = []
    for one in sorted(plans, key=lambda found: (found.layout.gpus, found.step_seconds)):
        if not front or one.step_seconds < front[-1].step_seconds:
            front.append(one)
    return front


def plan_sheet(plans: Sequence[Plan], sizes: Sequence[Plan], gpu_hour: float | None) -> Sheet:
    """The first of the ``plans`` in full, the others in a table; ``sizes`` are the best on other numbers of GPUs."""
    best, front = plans[0], pareto(sizes)
    return Sheet(
        "simcoll plan",
        show_seconds(best.step_seconds),
        f"a step of {plan_title(best)}",
        _facts(best, gpu_hour),
        notes=best.notes,
        bars=_times(best),
        further=[_memory(best)],
        curve=curve_of(
            [one.layout.gpus for one in front],
            [("step", [one.step_seconds for one in front])],
            "The shortest step by number of GPUs",
            lambda gpus: f"{gpus:,}",
            show_seconds,
        ),
        first=[_table("Layouts, the best first", plans, gpu_hour)] if len(plans) > 1 else [],
        tables=[_table("Numbers of GPUs: none with fewer has as short a step", front, gpu_hour)] if front else [],
    )


def _facts(found: Plan, gpu_hour: float | None) -> list[Fact]:
    fits = "fits" if found.fits else "does not fit"
    facts = [
        Fact("Tokens a second", f"{found.tokens_per_second_per_gpu:,.0f}", "on each GPU"),
        Fact("MFU", f"{100 * found.mfu:.1f} %", "of the peak in 16 bits"),
        Fact(
            "Memory",
            f"{found.memory_bytes / GIB:,.1f} GiB",
            f"of {found.capacity / GIB:,.0f} GiB: {fits}",
            marked=not found.fits,
        ),
    ]
    if gpu_hour is not None:
        facts.append(Fact("A million tokens", f"{price_of(found, gpu_hour):,.3g}", f"at {gpu_hour:g} a GPU-hour"))
    return facts


def _times(found: Plan) -> Bars:
    whole = found.step_seconds
    bars = []
    for name, seconds in found.step.terms().items():
        if seconds >= _LEAST * whole:
            parts = [0.0, 0.0, 0.0]
            parts[_IDLE.get(name, 0)] = seconds
            bars.append(Bar(name, (parts[0], parts[1], parts[2]), f"{show_seconds(seconds)}, {seconds / whole:.1%}"))
    return Bars("Time by part", _TIMES, tuple(bars))


def _memory(found: Plan) -> Bars:
    whole = found.memory_bytes
    parts = [(name, size) for name, size in found.memory.parts().items() if size >= _LEAST * whole]
    bars = (Bar(name, (size,), f"{size / GIB:,.1f} GiB, {size / whole:.1%}") for name, size in parts)
    return Bars("Memory by part", ("bytes of a GPU",), tuple(bars))


def _table(title: str, plans: Sequence[Plan], gpu_hour: float | None) -> PageTable:
    headings = ("layout", "recompute", "GPUs", "step", "tokens/s/GPU", "MFU", "GiB")
    priced = gpu_hour is not None
    rows = []
    for one in plans:
        row = [layout_text(one.layout), one.layout.recompute, f"{one.layout.gpus:,}", show_seconds(one.step_seconds)]
        row += [f"{one.tokens_per_second_per_gpu:,.0f}", f"{100 * one.mfu:.1f} %", f"{one.memory_bytes / GIB:,.1f}"]
        row += [f"{price_of(one, gpu_hour):,.3g}"] if gpu_hour is not None else []
        rows.append(tuple(row))
    return PageTable(title, (*headings, *(("1M tokens",) if priced else ())), tuple(rows), texts=2)
