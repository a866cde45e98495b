"""The closed form of a plan against the engine that replays recorded jobs, on the same program of a small job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import pytest

from simcoll.core.record import Group
from simcoll.plan.layout import Layout
from simcoll.plan.model_files import model_named
from simcoll.plan.network import network_of
from simcoll.plan.planning import Plan, plan_of
from simcoll.plan.program import Collective, actions
from simcoll.plan.rates import Framework, Rates, fitted_shares, reached
from simcoll.plan.step import StepTime, step_time
from simcoll.plan.traffic import traffic_of
from simcoll.plan.work import work_of
from simcoll.pricing.collective_prices import prices_of
from simcoll.pricing.job import Collectives, RecordedJob, Stream
from simcoll.pricing.rank_program import BLOCK, LAUNCH, WAIT, Program
from simcoll.pricing.replay import replay
from simcoll.pricing.roofline import RooflineRates
from simcoll.pricing.waits import with_waits
from simcoll.topology.clusters import cluster

TORCHTITAN = Framework("torchtitan")


@dataclass
class Job:
    """Ranks' operations as they are added: `call` begins a collective, `wait` waits for it, `gap` is compute before."""

    ranks: int
    streams: dict[tuple[int, ...], int] = field(default_factory=dict)
    made: list[tuple[int, int, str, int]] = field(default_factory=list)
    known: dict[object, int] = field(default_factory=dict)
    operations: dict[int, list[tuple[int, int, float]]] = field(default_factory=dict)

    def call(self, rank: int, name: object, one: Collective, members: tuple[int, ...], kind: int, gap: float) -> None:
        op = "send" if one.op == "recv" else one.op
        if name not in self.known:
            self.known[name] = len(self.made)
            stream = self.streams.setdefault(members, len(self.streams))
            self.made.append((stream, len(self.made), op, one.bytes))
        self.operations.setdefault(rank, []).append((kind, self.known[name], gap))

    def wait(self, rank: int, name: object, gap: float) -> None:
        self.operations.setdefault(rank, []).append((WAIT, self.known[name], gap))

    def seconds(self, topology: nx.DiGraph[object], rates: RooflineRates | None = None) -> float:
        """The time of the replay."""
        ops = tuple(dict.fromkeys(op for _, _, op, _ in self.made))
        came = np.zeros(len(self.made), np.int32)
        programs = []
        for rank in range(self.ranks):
            kinds, instances, gaps = zip(*self.operations[rank], strict=True)
            kind, instance = np.array(kinds, np.uint8), np.array(instances, np.int32)
            np.add.at(came, instance[kind != WAIT], 1)
            places = np.arange(len(kinds), dtype=np.int32)
            programs.append(Program(kind, instance, np.array(gaps), places, True))
        number, sequence, op, size = zip(*self.made, strict=True)
        collectives = Collectives(
            np.array(number, np.int32),
            np.array(sequence, np.int64),
            np.array([ops.index(one) for one in op], np.int32),
            np.array(size, np.int64),
            came,
            ops,
        )
        streams = tuple(
            Stream(
                Group(str(members), "", members),
                members,
                "send" in ops and len(members) == 2,
                np.array(members, np.int32),
            )
            for members in self.streams
        )
        job = RecordedJob(
            tuple(range(self.ranks)), self.ranks, streams, collectives, tuple(programs), (None,) * self.ranks
        )
        prices = prices_of(job, topology)
        job, _ = with_waits(job, prices, rates)
        return replay(job, prices).seconds


def planned(name: str, layout: Layout) -> tuple[Plan, float, float]:
    """A plan, and the seconds of a forward and of a backward pass of all layers."""
    model, topology = (
        model_named(name),
        cluster(gpu="h100", nodes=-(-layout.gpus // 8), gpus_per_node=min(8, layout.gpus)),
    )
    found = plan_of(model, layout, topology, TORCHTITAN)
    rates, work = Rates("h100", layout.dtype, TORCHTITAN), work_of(model, layout)
    return found, rates.forward(work).total, rates.backward(work).total


@pytest.mark.parametrize(
    ("nodes", "seq_len", "replicas"), [(1, 8192, 1), (1, 512, 1), (4, 8192, 1), (4, 2048, 1), (2, 8192, 2)]
)
def test_sharded_layers_are_gathered_beside_the_layers_before(nodes: int, seq_len: int, replicas: int) -> None:
    shards = 8 * nodes // replicas
    layout = Layout(dp_shard=shards, dp_replicate=replicas, global_batch=8 * nodes, seq_len=seq_len)
    found, forward, backward = planned("llama3-8b", layout)
    program = found.program()
    gather = next(one for one in program if one.part == "gather.forward" and one.count == 32)
    scatter = next(one for one in program if one.part == "scatter" and one.count == 32)
    outer = next(one for one in program if one.part == "outer")
    summed = next((one for one in program if one.part == "replicas" and one.count == 32), None)
    job = Job(layout.gpus)
    for rank in range(layout.gpus):
        replica, place = divmod(rank, shards)
        members = tuple(range(replica * shards, (replica + 1) * shards))
        job.call(rank, ("outer", replica), outer, members, BLOCK, 0.0)
        for way, seconds in (("f", forward), ("b", backward)):
            job.call(rank, (way, replica, 0), gather, members, LAUNCH, 0.0)
            for layer in range(32):
                job.wait(rank, (way, replica, layer), 0.0)
                if layer < 31:
                    job.call(rank, (way, replica, layer + 1), gather, members, LAUNCH, 0.0)
                # Compute stands before the next operation.
                if way == "b":
                    job.call(rank, ("s", replica, layer), scatter, members, LAUNCH, seconds / 32)
                    if layer:
                        job.wait(rank, ("s", replica, layer - 1), 0.0)
                    if layer and summed is not None:
                        ends = across(place, shards, replicas)
                        job.call(rank, ("r", place, layer - 1), summed, ends, LAUNCH, 0.0)
                else:
                    job.call(rank, ("mark", rank, layer), scatter_of_nothing(scatter), (rank,), LAUNCH, seconds / 32)
        job.wait(rank, ("s", replica, 31), 0.0)
        if summed is not None:
            job.call(rank, ("r", place, 31), summed, across(place, shards, replicas), BLOCK, 0.0)
            for layer in range(31):
                job.wait(rank, ("r", place, layer), 0.0)
    graph = cluster(gpu="h100", nodes=nodes)
    closed = closed_form(found, {"contention": 0.0})
    assert closed.kernels.total + closed.data == pytest.approx(job.seconds(graph), rel=0.08)
    # With stragglers and contention, as dry runs are priced.
    whole = found.step.kernels.total + found.step.data + found.step.stragglers
    assert whole == pytest.approx(job.seconds(graph, reached("h100")), rel=0.08)


def across(place: int, shards: int, replicas: int) -> tuple[int, ...]:
    """The ranks that have one shard."""
    return tuple(range(place, shards * replicas, shards))


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_layers_wait_for_their_collectives(tp: int) -> None:
    layout = Layout(tp=tp, global_batch=1, seq_len=8192, zero=1)
    found, forward, backward = planned("llama3-8b", layout)
    gather, scatter = (next(one for one in found.program() if one.op == op) for op in ("all_gather", "reduce_scatter"))
    job, members = Job(tp), tuple(range(tp))
    for rank in members:
        for number in range(gather.count):
            # Half of them belong to the forward pass.
            seconds = (forward if 2 * number < gather.count else backward) / (gather.count / 2)
            job.call(rank, ("g", number), gather, members, BLOCK, 0.0)
            job.call(rank, ("s", number), scatter, members, BLOCK, seconds)
    closed = closed_form(found, {"tensor.exposed": 1.0})
    replayed = job.seconds(cluster(gpu="h100", nodes=1, gpus_per_node=tp), reached("h100"))
    assert closed.kernels.total + closed.tensor == pytest.approx(replayed, rel=0.02)


def closed_form(found: Plan, shares: Mapping[str, float]) -> StepTime:
    """The step with other shares."""
    rates = Rates("h100", found.layout.dtype, TORCHTITAN, {**fitted_shares(), **shares})
    model, layout = found.model, found.layout
    network = network_of(cluster(gpu="h100", nodes=-(-layout.gpus // 8), gpus_per_node=min(8, layout.gpus)))
    return step_time(model, layout, work_of(model, layout), traffic_of(model, layout, network, TORCHTITAN), rates)


def scatter_of_nothing(one: Collective) -> Collective:
    """A call of one rank, which carries the compute before it."""
    return Collective("small", one.op, "alone", range(1), 0, one.dtype, 1)


@pytest.mark.parametrize(("stages", "times"), [(2, 4), (4, 4), (4, 16), (8, 16)])
def test_a_pipeline_waits_as_long_as_its_bubble(stages: int, times: int) -> None:
    layout = Layout(pp=stages, global_batch=times, seq_len=8192, zero=1)
    found, forward, backward = planned("llama3-8b", layout)
    job = Job(stages)
    for stage in range(stages):
        done = {"F": 0, "B": 0}
        sends = next(one for one in found.program(stage) if one.op == "send")
        for action in actions(layout, stage):
            number, step = done[action], 1 if action == "F" else -1
            seconds = (forward if action == "F" else backward) / stages
            done[action] += 1
            before, behind = stage - step, stage + step
            if 0 <= before < stages:
                job.call(stage, (action, before, number), sends, (before, stage), BLOCK, 0.0)
            if 0 <= behind < stages:
                job.call(stage, (action, stage, number), sends, (stage, behind), LAUNCH, seconds)
            else:
                job.call(stage, (action, stage, number), scatter_of_nothing(sends), (stage,), LAUNCH, seconds)
    slot = (forward + backward) / stages
    closed = times * slot + (stages - 1) * slot + found.step.stages
    topology = cluster(gpu="h100", nodes=1, gpus_per_node=stages)
    assert closed == pytest.approx(job.seconds(topology), rel=0.02)
