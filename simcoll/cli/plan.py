"""``simcoll plan``: the time of a training step of a model in a layout on a cluster, and the memory that it needs."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcoll.cli.arguments import add_executor_argument, add_output_arguments, add_topology_arguments, topology_request
from simcoll.cli.output import Output
from simcoll.core.executors import opened
from simcoll.core.io import stated_path
from simcoll.core.units import counted, show_seconds
from simcoll.errors import BAD_INPUT, OK, ExecutorError, SimcollError, UsageError
from simcoll.topology.request import TopologyRequest

if TYPE_CHECKING:
    from rich.console import RenderableType

    from simcoll.plan.network import Network
    from simcoll.plan.planning import Plan
    from simcoll.plan.search import Found

_WHOLE = (
    ("dp-shard", "ranks over which the state is sharded (default: all that are left)"),
    ("dp-replicate", "replicas of the sharded state (default: 1)"),
    ("tp", "tensor parallel ranks (default: 1)"),
    ("pp", "pipeline stages (default: 1)"),
    ("virtual-stages", "model chunks of each pipeline stage (default: 1)"),
    ("cp", "context parallel ranks (default: 1)"),
    ("ep", "expert parallel ranks (default: 1)"),
    ("micro-batch", "sequences of a micro-batch (default: 1)"),
    ("global-batch", "sequences of a step (default: one micro-batch on each data parallel rank)"),
    ("seq-len", "tokens of a sequence (default: 4096)"),
)
_SIZES = 3
"""A page has a half, a quarter and an eighth of the servers, and two, four and eight times as many."""

_MOST_GPUS = 16_384
"""A page has no larger clusters than this, or than the one that is asked for."""

_MOST_PRICE = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``plan`` to its parser."""
    parser.add_argument("--model", metavar="NAME|FILE", help="llama3-70b, deepseek-v3, ..., or a .toml file")
    add_topology_arguments(parser)
    group = parser.add_argument_group("layout", "how model, batch and state are divided over the GPUs")
    for name, about in _WHOLE:
        group.add_argument(f"--{name}", metavar="N", type=int, help=about)
    group.add_argument("--schedule", metavar="NAME", help="gpipe, 1f1b, interleaved or zero-bubble (default: 1f1b)")
    group.add_argument("--dtype", metavar="NAME", help="products: bf16, fp8, fp8-rowwise, mxfp8, nvfp4 (default: bf16)")
    group.add_argument("--recompute", metavar="HOW", help="activations: none, selective or full (default: none)")
    group.add_argument("--zero", metavar="STAGE", type=int, help="0 DDP, 1, 2 sharded optimizer, 3 FSDP (default)")
    group.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=None, help="with torch.compile (default)"
    )
    group.add_argument(
        "--framework", metavar="NAME", default="torchtitan", help="torchtitan (default), megatron, nemo, llm-foundry"
    )
    parser.add_argument(
        "--search", action="store_true", help="rank the layouts that fit; layout options that are given stay fixed"
    )
    add_executor_argument(parser)
    parser.add_argument("--gpu-hour", metavar="PRICE", type=float, help="the price of a GPU-hour, to price tokens")
    parser.add_argument("--csv", metavar="FILE", type=stated_path, help="price each row of a file of measured steps")
    parser.add_argument("--html", metavar="FILE", type=stated_path, help="also write a page with pictures")
    add_output_arguments(parser)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One plan, the best of all layouts, or a file of rows; ``layout`` has the options that are given."""

    model: str | None
    topology: TopologyRequest
    framework: str
    rows: Path | None
    layout: Mapping[str, Any] = field(default_factory=dict)
    search: bool = False
    gpu_hour: float | None = None
    html: Path | None = None
    executor: str | None = None


def run_command(options: argparse.Namespace) -> int:
    """Carry out ``simcoll plan``; the exit code of the contract."""
    names = [*(name.replace("-", "_") for name, _ in _WHOLE), "schedule", "dtype", "recompute", "zero", "compile"]
    layout = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    request = PlanRequest(
        options.model,
        topology_request(options),
        options.framework,
        options.csv,
        layout,
        options.search,
        options.gpu_hour,
        options.html,
        options.executor,
    )
    return price_plan(request, Output(json=options.json, plain=options.plain))


def price_plan(request: PlanRequest, output: Output) -> int:
    """Price a plan, or the rows of a file, and show them; the exit code of the contract."""
    try:
        if request.rows is not None:
            if request.html is not None:
                raise UsageError("--html is a page of one plan or of a search; leave it out with --csv")
            return _price_rows(request.rows, output)
        if request.model is None:
            raise UsageError("no model is given; give --model NAME, such as llama3-70b, or a .toml file, or --csv FILE")
        if request.gpu_hour is not None and not 0 < request.gpu_hour < _MOST_PRICE:
            raise UsageError(f"--gpu-hour {request.gpu_hour:g}: expected a price above 0 and below {_MOST_PRICE:g}")
        if request.executor is not None and not request.search:
            raise UsageError("--executor spreads a search; give --search too, or leave it out")
        if request.search:
            best = _search(request, request.model)
            _write_page(request, best.plans)
            output.render(_ranking(best, request.gpu_hour), lambda: _priced(best.document(), best.plans, request))
        else:
            found = _plan(request, request.model)
            _write_page(request, [found])
            output.render(_picture(found, request.gpu_hour), lambda: _priced(_with_program(found), [found], request))
    except ExecutorError as error:
        return output.refuse(error.code, str(error))
    except (SimcollError, ValueError) as error:
        return output.refuse(BAD_INPUT, str(error))
    return OK


def _network(request: PlanRequest) -> Network:
    from simcoll.plan.network import network_asked

    return network_asked(request.topology if request.topology.is_given else TopologyRequest(gpu="h100"))


def _plan(request: PlanRequest, model: str) -> Plan:
    from simcoll.plan.model_files import model_named
    from simcoll.plan.planning import layout_of, plan_of
    from simcoll.plan.rates import Framework

    network = _network(request)
    layout = layout_of(request.layout, network.gpus)
    return plan_of(model_named(model), layout, network, Framework(request.framework))


def _search(request: PlanRequest, model: str) -> Found:
    from simcoll.cli.progress import progress_bar
    from simcoll.plan.model_files import model_named
    from simcoll.plan.rates import Framework
    from simcoll.plan.search import search

    described, topology = model_named(model), _network(request)
    framework = Framework(request.framework)
    with contextlib.ExitStack() as stack:
        spread = None if request.executor is None else stack.enter_context(opened(request.executor))
        tell = stack.enter_context(progress_bar("pricing layouts", "sorting"))
        return search(described, topology, framework, request.layout, tell=tell, spread=spread)


def _write_page(request: PlanRequest, plans: Sequence[Plan]) -> None:
    """The page of the plans, where one is asked for; raises TopologyError where it cannot be written."""
    if request.html is None:
        return
    from simcoll.plan.page import plan_sheet
    from simcoll.reports.price_page import sheet_page
    from simcoll.topology.file import write_text

    sizes = [*plans[:1], *_sizes(request, plans[0])]
    write_text(request.html, sheet_page(plan_sheet(plans, sizes, request.gpu_hour)))


def _sizes(request: PlanRequest, best: Plan) -> Iterator[Plan]:
    """The best plan on a half, once, twice and so on of the servers, for the same batch and with what is given held."""
    from simcoll.plan.network import network_asked
    from simcoll.plan.search import search

    asked, nodes = request.topology, request.topology.nodes or 1
    if asked.topology is not None:
        return
    fixed = {name: value for name, value in request.layout.items() if name != "dp_shard"}
    fixed["global_batch"] = best.layout.global_batch
    for power in range(-_SIZES, _SIZES + 1):
        other = nodes * 2**power
        large = power > 0 and other * best.layout.gpus // nodes > _MOST_GPUS
        if other < 1 or other != int(other) or large or (power == 0 and request.search):
            continue
        network = network_asked(replace(asked, gpu=asked.gpu or "h100", nodes=int(other)))
        with contextlib.suppress(SimcollError):
            yield from search(best.model, network, best.framework, fixed, keep=1).plans


def _with_program(found: Plan) -> Mapping[str, object]:
    """The document of a plan, with what a rank of each pipeline stage sends."""
    stages = [[dict(one.document()) for one in found.program(stage)] for stage in range(found.layout.pp)]
    return {
        **found.document(),
        "program": [{"stage": stage, "collectives": all_of} for stage, all_of in enumerate(stages)],
    }


def _priced(document: Mapping[str, object], plans: Sequence[Plan], request: PlanRequest) -> Mapping[str, object]:
    """The document, with the price of a million tokens of its plan (or best one) where an hour has a price."""
    if request.gpu_hour is None:
        return document
    from simcoll.plan.page import price_of

    return {**document, "price_per_million_tokens": price_of(plans[0], request.gpu_hour)}


def _price_rows(path: Path, output: Output) -> int:
    """One JSON line a row, as soon as it is priced; raises UsageError for a file that is not one of rows."""
    from simcoll.plan.measured_steps import priced_row
    from simcoll.plan.rows import rows_of

    for row in rows_of(path):
        refused = {"id": row.cells.get("id", ""), "refused": row.problem}
        output.hand_over(json.dumps(refused if row.problem else priced_row(row.cells), allow_nan=False))
    return OK


def _ranking(found: Found, gpu_hour: float | None) -> RenderableType:
    from simcoll.core.text import plain
    from simcoll.plan.memory import GIB
    from simcoll.plan.page import layout_text, price_of
    from simcoll.reports.tables import Rows

    first = found.plans[0]
    title = (
        f"{first.model.name} on {counted(first.layout.gpus, 'GPU')} ({first.gpu}): the best of "
        f"{counted(found.layouts, 'layout')}, of which {found.fitting:,} fit"
    )
    table = Rows(title=plain(title), title_justify="left", box=None)
    heads = ["step", "tokens/s", "MFU", "GiB", "layout", "recompute", *(["1M tokens"] if gpu_hour is not None else [])]
    for name in heads:
        table.add_column(name, justify="left" if name in ("layout", "recompute") else "right")
    for one in found.plans:
        layout = one.layout
        cells = [show_seconds(one.step_seconds), f"{one.tokens_per_second_per_gpu:,.0f}", f"{100 * one.mfu:.1f} %"]
        cells += [f"{one.memory_bytes / GIB:,.0f}", layout_text(layout), layout.recompute]
        table.add_row(*cells, *([f"{price_of(one, gpu_hour):,.3g}"] if gpu_hour is not None else []))
    return table


def _picture(found: Plan, gpu_hour: float | None) -> RenderableType:
    from rich.console import Group

    from simcoll.core.text import plain
    from simcoll.plan.memory import GIB
    from simcoll.plan.page import plan_title, price_of
    from simcoll.reports.tables import Rows

    times = Rows(title=plain(plan_title(found)), title_justify="left", box=None)
    times.show_header = False
    times.add_row("step", show_seconds(found.step_seconds))
    times.add_row("tokens/s/GPU", f"{found.tokens_per_second_per_gpu:,.0f}")
    times.add_row("MFU", f"{100 * found.mfu:.1f} %")
    if gpu_hour is not None:
        times.add_row("price of 1M tokens", f"{price_of(found, gpu_hour):,.3g}")
    for name, seconds in found.step.terms().items():
        if seconds >= 0.001 * found.step_seconds:
            times.add_row(f"  {name}", f"{show_seconds(seconds)}  {100 * seconds / found.step_seconds:4.1f} %")
    memory = Rows(box=None)
    memory.show_header = False
    fits = "fits" if found.fits else "does not fit"
    memory.add_row("memory", f"{found.memory_bytes / GIB:,.1f} of {found.capacity / GIB:,.0f} GiB: {fits}")
    for name, size in found.memory.parts().items():
        if size >= 0.001 * found.memory_bytes:
            memory.add_row(f"  {name}", f"{size / GIB:,.1f} GiB")
    return Group(times, memory, *(plain(f"note: {note}") for note in found.notes))
