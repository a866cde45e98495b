"""Every schedule of the table delivers what its row means, and sends what it should and no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcoll.estimator.flow.engine import schedule
from simcoll.estimator.flow.layout import HostLayout, layout
from simcoll.estimator.flow.schedule import Schedule, TransferStep, steps
from simcoll.spec.collectives import COLLECTIVES
from simcoll.spec.table import Kind
from simcoll.topology.graph import Topology, TopologyError, connect, flat

ROWS = [(op, name) for op, spec in COLLECTIVES.items() for name in spec.schedules]
PIPELINED = [(op, name) for op in ("all_reduce", "broadcast", "reduce") for name in ("ring", "tree", "nvls_tree")]
PIPELINED = [row for row in PIPELINED if row in ROWS and row != ("all_reduce", "ring")]


def servers(hosts: Sequence[int]) -> Topology:
    """Hosts of so many GPUs each on an NVSwitch that reduces, all on one network switch."""
    graph = Topology()
    graph.add_node("net", kind="switch")
    for host, gpus in enumerate(hosts):
        graph.add_node(f"nvs{host}", kind="nvswitch", host=host, sharp=True)
        for gpu in range(gpus):
            name = f"gpu{host}.{gpu}"
            graph.add_node(name, kind="gpu", host=host)
            graph.add_node(f"nic{host}.{gpu}", kind="nic", host=host)
            connect(graph, name, f"nvs{host}", 450e9, 0.5e-6, link="nvlink")
            connect(graph, name, f"nic{host}.{gpu}", 64e9, 0.5e-6, link="pcie")
            connect(graph, f"nic{host}.{gpu}", "net", 50e9, 1e-6, link="network")
    return graph


LAYOUTS = {
    **{f"flat {n}": layout(flat(n, 50e9, 1e-6)) for n in (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 23, 31, 32, 33)},
    **{f"hosts {h}": layout(servers(h)) for h in ((4,), (2, 2), (3, 3, 3), (4, 4, 4, 4), (2,) * 7, (1, 2, 3), (4, 2))},
}

Block = tuple[Hashable, ...]
Held = dict[int, dict[Block, frozenset[int]]]


def blocks_of(made: Schedule) -> set[Block]:
    return {
        cast(Block, b)
        for step in steps(made)
        for time in range(step.times)
        for part in step.carried(time)
        for b in part
    }


def at_start(op: str, place: HostLayout, made: Schedule, root: int) -> Held:
    """Which blocks each rank has, and whose data is in them."""
    owner = {"all_gather": 0, "gather": 0, "all_to_all": 0}
    only = {"broadcast", "scatter"}
    held: Held = defaultdict(dict)
    for block in blocks_of(made):
        for rank in range(place.size):
            own = block[owner[op]] == rank if op in owner else True
            own = rank == root if op in only else own
            own = rank == 0 if op in ("send", "recv") else own
            own = block[0] == rank if op == "barrier" and isinstance(block[0], int) and len(block) == 1 else own
            if own:
                held[rank][block] = frozenset([rank])
    return held


def run(step: TransferStep, held: Held) -> None:
    """Every round in turn: what is sent is what was there when the round began."""
    stages = np.zeros(len(step.sources), int) if step.stages is None else step.stages
    carried: dict[int, Sequence[Sequence[Hashable]]] = {}
    for now in range(step.rounds):
        sent = []
        for index in np.flatnonzero((stages <= now) & (now < stages + step.times)):
            source, target = int(step.sources[index]), int(step.targets[index])
            time = int(now - stages[index])
            if time not in carried:
                carried[time] = step.carried(time)
            blocks = cast(Sequence[Block], carried[time][index])
            sent += [(target, block, held[source][block]) for block in blocks]
        for target, block, brought in sent:
            had = held[target].get(block, frozenset())
            assert not (had & brought) or had <= brought, "a rank's data would be added twice"
            held[target][block] = had | brought


def delivers(op: str, place: HostLayout, made: Schedule, root: int) -> None:
    """What the row's meaning demands, rank by rank."""
    held = at_start(op, place, made, root)
    for step in steps(made):
        run(step, held)
    everyone, blocks = frozenset(range(place.size)), blocks_of(made)
    for rank in range(place.size):
        if op in ("all_reduce", "reduce") and (op == "all_reduce" or rank == root):
            assert all(held[rank][block] == everyone for block in blocks)
        elif op in ("barrier", "monitored_barrier"):
            assert frozenset().union(*held[rank].values()) == everyone or not blocks
        elif op in ("broadcast", "all_gather") or (op == "gather" and rank == root):
            assert set(held[rank]) == blocks
        elif op == "scatter":
            assert rank == root or (rank,) in held[rank]
        elif op == "reduce_scatter":
            own = [block for block in blocks if block[0] == rank]
            assert own or place.size == 1
            assert all(held[rank][block] == everyone for block in own)
        elif op == "all_to_all":
            assert {block for block in held[rank] if block[1] == rank} >= {
                (one, rank) for one in range(place.size) if one != rank
            }


def applies(algorithm: str, place: HostLayout) -> bool:
    """What the algorithm needs: several ranks on each of several hosts alike, switches that reduce."""
    hosts = {len(group) for group in place.groups}
    square = len(place.groups) > 1 and len(hosts) == 1 and hosts != {1}
    needs = {
        "hierarchical": square,
        "nvls_tree": square and all(place.switches),
        "nvls": len(place.groups) == 1 and place.size > 1 and any(place.switches),
    }
    return place.size == 1 or needs.get(algorithm, True)


@pytest.mark.parametrize("algorithm", sorted({algorithm for _, algorithm in ROWS}))
def test_what_does_not_apply_is_refused(algorithm: str) -> None:
    accepted = [
        (op, name)
        for op, other in ROWS
        for name, place in LAYOUTS.items()
        if other == algorithm and not applies(algorithm, place) and not is_refused(op, algorithm, place)
    ]
    assert accepted == []


def is_refused(op: str, algorithm: str, place: HostLayout) -> bool:
    try:
        schedule(op, algorithm, place, 1.0)
    except TopologyError as error:
        return "choose another" in str(error)
    return False


@pytest.mark.parametrize(("op", "algorithm"), ROWS)
def test_it_delivers(op: str, algorithm: str) -> None:
    for place in LAYOUTS.values():
        root = place.size // 2
        if applies(algorithm, place):
            delivers(op, place, schedule(op, algorithm, place, 1.0, root), root)


@pytest.mark.parametrize("chunks", [2, 5])
@pytest.mark.parametrize("name", ["flat 2", "flat 9", "hosts (3, 3, 3)", "hosts (1, 2, 3)"])
@pytest.mark.parametrize(("op", "algorithm"), PIPELINED)
def test_a_pipeline_delivers_every_chunk(op: str, algorithm: str, name: str, chunks: int) -> None:
    place = LAYOUTS.get(name) or layout(flat(9, 50e9, 1e-6))
    if not applies(algorithm, place):
        return
    made = tuple(step.split(chunks) for step in schedule(op, algorithm, place, 1.0, 1))
    assert sum(step.times for step in made) == chunks
    delivers(op, place, made, 1)


def volumes(made: Schedule, endpoints: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that each endpoint sends and receives in all."""
    sent, received = np.zeros(endpoints), np.zeros(endpoints)
    for step in steps(made):
        np.add.at(sent, step.sources, step.sizes * step.times)
        np.add.at(received, step.targets, step.sizes * step.times)
    return sent, received


def bound(op: str, algorithm: str, n: int) -> tuple[float, float]:
    """The least and most bytes that the busiest of n ranks may send or receive, as parts of the size."""
    log, traffic = (n - 1).bit_length(), COLLECTIVES[op].traffic(n)
    if op in ("barrier", "monitored_barrier"):
        return (0.0, 2.0 * n)
    return {
        "ring": (traffic, traffic),
        "tree": (traffic, 2.0 if op in ("all_reduce", "broadcast", "reduce") else log),
        "halving_doubling": (traffic, traffic if n & (n - 1) == 0 else 4.0),
        "bruck": (traffic, traffic if op == "all_gather" else (n // 2 + 1) * log / n),
        "pat": (traffic, traffic),
        "hierarchical": (traffic, 2.0 * traffic),
        "nvls": (1.0, 1.0),
        "nvls_tree": (1.0, 2.5),
        "pairwise": (traffic, traffic),
        "direct": (traffic, n - 1 if op in ("broadcast", "reduce") else traffic),
    }[algorithm]


@pytest.mark.parametrize(("op", "algorithm"), ROWS)
def test_the_busiest_rank_moves_what_the_algorithm_is_known_for(op: str, algorithm: str) -> None:
    assert schedule(op, algorithm, LAYOUTS["flat 1"], 1.0) == ()
    for name, place in LAYOUTS.items():
        if place.size > 1 and applies(algorithm, place):
            sent, received = volumes(schedule(op, algorithm, place, 1.0), len(place.nodes))
            busiest = max(sent[: place.size].max(), received[: place.size].max())
            least, most = bound(op, algorithm, place.size)
            assert least - 1e-9 <= busiest <= most + 1e-9, name


@given(st.sampled_from(ROWS), st.integers(2, 40), st.floats(1, 1e12), st.data())
def test_bytes_are_conserved_and_grow_with_the_size(row: tuple[str, str], n: int, size: float, data: st.DataObject):
    root = data.draw(st.integers(0, n - 1))
    place = layout(flat(n, 50e9, 1e-6))
    try:
        one, many = schedule(*row, place, 1.0, root), schedule(*row, place, size, root)
    except TopologyError:
        return
    sent, received = volumes(many, n)
    assert sent.sum() == pytest.approx(received.sum())
    assert np.allclose(sent, volumes(one, n)[0] * size)
    assert all((step.sources != step.targets).all() for step in steps(many))


@pytest.mark.parametrize("op", [op for op, spec in COLLECTIVES.items() if spec.kind is not Kind.SYNCHRONISATION])
def test_a_schedule_stays_compact(op: str) -> None:
    """Steps grow at most with the logarithm of the ranks, and transfers with their number."""
    place = layout(flat(2048, 50e9, 1e-6))
    for algorithm in COLLECTIVES[op].schedules:
        if algorithm not in ("hierarchical", "nvls", "nvls_tree"):
            made = schedule(op, algorithm, place, 1.0)
            assert len(made) <= 26
            assert all(len(step.sources) <= 4 * 2048 for step in made if isinstance(step, TransferStep))


def test_channels_leave_each_host_by_every_nic() -> None:
    place = LAYOUTS["hosts (4, 4, 4, 4)"]
    (step,) = schedule("all_reduce", "ring", place, 1.0)
    host = np.repeat(np.arange(4), 4)
    out = host[step.sources] != host[step.targets]
    assert sorted(step.sources[out]) == sorted(step.targets[out]) == list(range(16))
    assert (step.sources[out] % 4 == step.targets[out] % 4).all()


def test_an_unknown_algorithm_names_those_that_there_are() -> None:
    with pytest.raises(TopologyError, match="algorithm of all_reduce is 'magic', expected one of ring, tree"):
        schedule("all_reduce", "magic", LAYOUTS["flat 4"], 1.0)
    with pytest.raises(TopologyError, match="op is 'reduce_all', expected one of all_reduce"):
        schedule("reduce_all", "ring", LAYOUTS["flat 4"], 1.0)
    with pytest.raises(TopologyError, match="root is 4, expected the place"):
        schedule("broadcast", "ring", LAYOUTS["flat 4"], 1.0, 4)
