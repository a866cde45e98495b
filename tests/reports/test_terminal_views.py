"""Every view of every command: it fits the console, loses nothing, and shows what is hostile instead of obeying it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
from rich.cells import cell_len
from rich.console import Group as Stack
from rich.console import RenderableType

import simcoll
from simcoll.cli import calibrate, estimate_op, main
from simcoll.cli.output import Output
from simcoll.core.record import Group, Record, Source, State
from simcoll.core.text import safe
from simcoll.core.trace import MemoryTrace
from simcoll.estimator.measured import Measurement
from simcoll.pricing.price import price
from simcoll.pricing.views.text import PricingPicture, PricingText
from simcoll.reports.rules import render_rule, render_rules_table
from simcoll.reports.terminal import TerminalReport
from simcoll.simulation.backends import Run
from simcoll.simulation.library import scenario_text
from simcoll.simulation.report import Simulation, SimulationPicture
from simcoll.spec.call import Buffer, Call
from simcoll.topology.summary import render_summary, render_tree, summarise
from simcoll.verifier.findings.finding import Finding, RankSource, RankState, RankStatus, Report, Side, Verdict
from simcoll.verifier.findings.rules import RULES
from simcoll.verifier.postmortem import judge
from simcoll.verifier.views.requested import Selection, View, viewed
from tests.support.jobs import write_job
from tests.support.seeds import ALL
from tests.support.timed import Made, call, timed

HOSTILE = "\x1b[31m[red]x[/red]\x9b2J\x07\u202e\r\n\u200b[/]\\ \xe4\u6f22"
LONG = "/a/very/long/place" * 12 + "/train.py"
WORD = "w" * 300
WIDTHS = (40, 80, 120, 200)


@dataclass(frozen=True)
class Way:
    """How a command is asked to write: environment, encoding of stdout, ``--plain``."""

    encoding: str = "utf-8"
    colour: bool = False
    plain: bool = False


WAYS = {
    "piped": Way(),
    "colour": Way(colour=True),
    "ASCII": Way("ascii"),
    "colour in ASCII": Way("ascii", colour=True),
    "Latin-1": Way("latin-1"),
    "plain": Way(plain=True),
    "plain in ASCII": Way("ascii", colour=True, plain=True),
}


def shown(monkeypatch, way: Way, width: int, show: Callable[[], object]) -> str:
    """What a command puts on a stdout of a kind."""
    raw = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(raw, way.encoding, "strict"))
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm-256color")
        if way.colour:
            patch.setenv("FORCE_COLOR", "1")
        show()
        sys.stdout.flush()
        return raw.getvalue().decode(way.encoding)


def check(text: str, way: Way, width: int) -> None:
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text) if way.colour and not way.plain else text
    strange = {character for character in bare if not character.isprintable()} - {"\n"}
    assert not strange, f"unprintable {strange}"
    too_wide = [line for line in bare.split("\n") if cell_len(line) > width]
    assert not too_wide, f"{len(too_wide)} lines are wider than {width}: {too_wide[:3]}"
    assert "\u2026" not in bare, "something is cut"
    if way.plain:
        assert bare.isascii()
        assert not re.search(r"[-+=_|]{8}", bare), "a box"


def group(ranks: int, name: str = HOSTILE) -> Group:
    return Group(name, f"{WORD} {HOSTILE}", tuple(range(ranks)))


def a_record(ranks: int, number: int = 7, **of: object) -> Record:
    buffer = (Buffer((20, 10), "float32", "cuda:0"),)
    stated = Call("all_reduce", "allreduce", buffer, buffer, reduce_op="sum", input_splits=tuple(range(ranks)))
    source = Source(LONG + HOSTILE, 41, f"step{HOSTILE}", f"x = '{HOSTILE}' + " + "name + " * 60)
    return replace(Record(HOSTILE, number, stated, source, State.STARTED), **of)


@cache
def hostile_report(ranks: int) -> TerminalReport:
    """A finding of each rule, with as many sides as there can be."""
    first = a_record(ranks)
    everybody = tuple(range(ranks))
    sides = tuple(
        Side(tuple(range(place, ranks, 16)), first.call, (RankSource(place, first.source),), f"raised {HOSTILE}{WORD}")
        for place in range(min(ranks, 16))
    )
    findings = tuple(
        Finding(
            rule.code,
            rule.severity,
            f"{HOSTILE} {WORD}",
            group(ranks),
            7,
            everybody,
            everybody[::2],
            sides if rule.code == "SC104" else sides[:2],
            ("reduce_op", "shape"),
            ("root", "order"),
            (first,) * 3,
        )
        for rule in map(RULES.get, ("SC104", "SC204", "SC801"))
    )
    states = tuple(RankState(rank, RankStatus.FAILED, -9 if rank % 3 else rank % 50 + 1) for rank in everybody)
    last = {rank: a_record(ranks, rank % 20 + 1) for rank in everybody}
    notes = (f"{HOSTILE} {LONG}", WORD)
    return TerminalReport(Report(Verdict.FINDINGS, ranks, HOSTILE, findings, states, 5, notes, last=last))


@cache
def hostile_traces(ranks: int) -> Sequence[MemoryTrace]:
    """One rank in 16 reduces otherwise, and half of them do not come to the last call."""
    half = [Group(f"{HOSTILE}{place}", WORD, tuple(range(place, ranks, 2))) for place in range(min(ranks, 2))]
    world = Group("0", "default_pg", tuple(range(ranks)))
    calls = {}
    for rank in range(ranks):
        stated = call(size=1 << 20)
        other = replace(stated, reduce_op="max") if rank % 16 == 3 else stated
        made = [Made("0", stated, 0.001), Made(half[rank % 2].name, stated, 0.002), Made("0", other)]
        calls[rank] = made + [Made("0", stated, state=State.STARTED)] * (rank % 2)
    traces = timed([world, *half], calls)
    source = Source(LONG + HOSTILE, 3, f"step {HOSTILE}", WORD)
    return [replace(trace, sources=(source,) * len(trace.sources)) for trace in traces]


@cache
def judged_report(ranks: int) -> TerminalReport:
    traces = hostile_traces(ranks)
    return TerminalReport(viewed(judge(traces), traces, View(Selection(), 5, True)))


@cache
def topology(ranks: int) -> simcoll.Topology:
    nodes = max(ranks // 8, 1)
    graph = simcoll.cluster(gpu="h100", nodes=nodes, gpus_per_node=min(ranks, 8))
    graph.graph.update(name=f"{HOSTILE} {WORD}", gpu=HOSTILE, fabric=WORD, notes=(HOSTILE, WORD))
    return graph


@cache
def hostile_tree(ranks: int) -> RenderableType:
    import networkx as nx

    graph = topology(ranks)
    named = nx.relabel_nodes(graph, {node: f"{node}{HOSTILE}{WORD}" for node in list(graph)[::7]})
    return Stack(render_tree(graph), render_tree(named), render_summary(summarise(named)))


@cache
def priced(ranks: int) -> RenderableType:
    traces = [
        *timed([world(ranks)], {rank: [Made("0", call(size=1 << 20), 0.001 * (rank % 5))] * 6 for rank in range(ranks)})
    ]
    found = [price(traces, topology(ranks)), price(hostile_traces(ranks), topology(ranks))]
    found = [replace(one, name=f"{HOSTILE}{WORD}", topology=HOSTILE + WORD) for one in found]
    texts = [PricingText(found[0], found, [HOSTILE, WORD]), PricingText(found[1], found[1:])]
    return Stack(*texts, *map(PricingPicture, found))


def world(ranks: int) -> Group:
    return group(ranks, "0")


@cache
def estimates(ranks: int) -> RenderableType:
    graph = topology(ranks)
    sizes = (1, 1000, 1 << 20, (1 << 40) + 1)
    found = [simcoll.estimate("all_reduce", size, graph) for size in sizes]
    name = f"{HOSTILE}{WORD}"
    if found[0].bottleneck is not None:
        found[0] = replace(found[0], bottleneck=replace(found[0].bottleneck, source=HOSTILE, target=WORD))
    return Stack(
        *(estimate_op._one(name, each, explain=explain) for each in found for explain in (False, True)),
        *(estimate_op._range(name, found, explain=explain) for explain in (False, True)),
        estimate_op._comparison([name, WORD, HOSTILE], [[each] * 3 for each in found]),
    )


@cache
def simulation(ranks: int) -> RenderableType:
    report = judged_report(ranks).report
    run = Run(HOSTILE, report, seconds=1.5, traces=hostile_traces(ranks))
    return SimulationPicture(Simulation(f"{HOSTILE} {WORD}", run, run, [HOSTILE, WORD], [WORD]))


@cache
def calibration(ranks: int) -> RenderableType:
    rows = [Measurement("all_reduce", ranks, size, 1e-5 + size / 1e9) for size in (1024, 2048, 1 << 40)]
    outcome = calibrate.Calibrated(HOSTILE, WORD, ("a",) * ranks, tuple(rows), (replace(rows[1], bytes=1536),))
    return calibrate._table(outcome, outcome.trials())


@cache
def rules() -> RenderableType:
    return Stack(render_rules_table(), *(render_rule(rule, scenario_text(rule.code)) for rule in RULES.values()))


VIEWS = {
    "a report with all that there can be": hostile_report,
    "a report, its history and its timeline": judged_report,
    "topologies": hostile_tree,
    "priced jobs": priced,
    "estimates": estimates,
    "a simulation": simulation,
    "a calibration": calibration,
}


def rendered(monkeypatch, picture: RenderableType, way: Way, width: int) -> str:
    return shown(monkeypatch, way, width, lambda: Output(plain=way.plain).render(picture, dict))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4, pytest.param(512, marks=pytest.mark.nightly), 4096])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_in_every_way(monkeypatch, view, ranks):
    picture = VIEWS[view](ranks)
    for way in WAYS.values():
        for width in WIDTHS if ranks <= 4 or ALL else (40,):
            text = rendered(monkeypatch, picture, way, width)
            check(text, way, width)
            assert not re.search(r"(\d+[,;]\s+){24}", text), "ranks are listed one by one"


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_rules_fit_in_every_way(monkeypatch, way):
    for width in WIDTHS:
        check(rendered(monkeypatch, rules(), WAYS[way], width), WAYS[way], width)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_many_ranks_is_not_longer_than_one_of_a_few_hundred(monkeypatch, view):
    few, many = (
        len(rendered(monkeypatch, VIEWS[view](ranks), WAYS["piped"], 80).splitlines()) for ranks in (512, 4096)
    )
    assert many <= 1.1 * few + 5


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(
    ("view", "texts"),
    [
        ("a report with all that there can be", (HOSTILE, LONG, WORD, "name + " * 60)),
        ("a report, its history and its timeline", (HOSTILE, LONG)),
        ("topologies", (HOSTILE, WORD)),
        ("priced jobs", (HOSTILE, WORD)),
        ("estimates", (HOSTILE, WORD)),
        ("a simulation", (HOSTILE, LONG, WORD)),
        ("a calibration", (HOSTILE,)),
    ],
)
@pytest.mark.parametrize("width", [40, 80])
def test_what_is_long_is_folded_and_all_there(monkeypatch, view, texts, width):
    text = squeezed(rendered(monkeypatch, VIEWS[view](4), WAYS["plain"], width))
    for expected in texts:
        assert squeezed(safe(expected.strip()).encode("ascii", "backslashreplace").decode()) in text


COMMANDS = {
    "topology list": ["topology", "list"],
    "topology show": ["topology", "show", "dgx-h100", "--nodes", "64"],
    "topology draw": ["topology", "draw", "fat-tree-2"],
    "topology draw, one of many": ["topology", "draw", "--gpu", "h100", "--nodes", "64"],
    "estimate, one size": ["estimate", "all_reduce", "--bytes", "1GiB", "--gpu", "h100", "--nodes", "64"],
    "estimate, explained": ["estimate", "all_reduce", "--gpu", "h100", "--nodes", "2", "--explain"],
    "estimate, compared": ["estimate", "all_to_all", "--gpu", "h100", "--nodes", "2", "--compare", "dgx-a100"],
    "rules": ["rules"],
    "a rule": ["rules", "SC204"],
    "demo": ["demo"],
    "simulate": ["simulate", "SC301", "--gpu", "h100"],
    "verify": ["verify", "{folder}", "--timeline", "--last", "5"],
    "estimate, a trace": ["estimate", "{folder}", "--gpu", "h100", "--picture", "--compare", "dgx-a100"],
    "help": ["--help"],
    **{
        f"{command} --help": [*command.split(), "--help"]
        for command in (
            *("run", "verify", "simulate", "preflight", "estimate", "calibrate", "rules", "demo", "topology"),
            *("topology list", "topology show", "topology import", "topology draw"),
        )
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views") / "job"
    write_job(folder)
    return folder


def run(arguments: Sequence[str]) -> None:
    with contextlib.suppress(SystemExit):
        main(list(arguments))


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_fits_in_every_way(monkeypatch, folder, command):
    arguments = [part.format(folder=folder) for part in COMMANDS[command]]
    for way in WAYS.values():
        plain = ["--plain"] if way.plain and "--help" not in arguments else []
        for width in WIDTHS if ALL else (40, 120):
            text = shown(monkeypatch, way, width, partial(run, [*arguments, *plain]))
            assert len(text) > 20
            check(text, way, width)


@pytest.mark.parametrize("columns", [None, "", "0", "none", "100"])
def test_elsewhere_than_on_a_terminal_pictures_are_80_columns_wide(monkeypatch, columns):
    """Whatever the size of the terminal on which stderr is."""
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((200, 50)))
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "utf-8"))
    run(["demo"])
    sys.stdout.flush()
    text = raw.getvalue().decode()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) == (100 if columns == "100" else 80)
    assert not any(line.endswith(" ") for line in text.splitlines())


def on_a_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What a command writes on a real terminal of a size, stdout and stderr together."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "simcoll", *arguments]
    settings = kept | {"TERM": "xterm-256color", **environment}
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=settings)
    os.close(theirs)
    found = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody writes any more
        while part := os.read(mine, 1 << 16):
            found += part
    os.close(mine)
    child.wait()
    return found.decode().replace("\r\n", "\n")


COLOURS = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|38|48)(?:;[0-9;]*)?m")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 80, 132])
def test_a_terminal_is_used_to_its_width(columns):
    text = on_a_terminal(columns, "demo")
    assert COLOURS.search(text)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, bare.splitlines())) == columns


@pytest.mark.slow
def test_colours_and_styles_can_be_done_without():
    assert not COLOURS.search(on_a_terminal(80, "demo", NO_COLOR="1"))
    plain = on_a_terminal(80, "demo", "--plain")
    assert "\x1b" not in plain
    assert plain.isascii()
    assert "\x1b" not in on_a_terminal(80, "demo", TERM="dumb")


@pytest.mark.slow
def test_an_error_is_folded_on_a_terminal_between_words():
    path = "/none/" + "long/" * 20 + "x.simcoll"
    text = on_a_terminal(60, "verify", path)
    lines = text.splitlines()
    assert path in text
    assert all(len(line) <= 60 or line.strip() == f"{path}:" for line in lines)
    assert " ".join(text.split()) == f"simcoll: {path}: no such file or folder; give records or their folder"
