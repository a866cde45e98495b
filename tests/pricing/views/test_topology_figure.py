"""The topology of a simulated run in its page: the link that holds it up is marked and named."""

from __future__ import annotations

from simcoll.backends.simulated import simulate
from simcoll.backends.simulated.comm import Comm
from simcoll.pricing.views.topology_figure import topology_figure
from simcoll.topology.clusters import cluster

TOPOLOGY = cluster(gpu="h100", nodes=2, gpus_per_node=2, nics_per_node=2, nic_gbps=400, fabric="ib")


def test_the_bottleneck_of_the_costliest_line_is_marked() -> None:
    import numpy as np

    def program(comm: Comm) -> None:
        comm.all_reduce(np.ones(1 << 16, np.float32))

    figure = topology_figure(TOPOLOGY, simulate(program, 4, TOPOLOGY).traces)
    assert figure.text.startswith("all_reduce at line ")
    assert "its bottleneck is " in figure.text
    assert "! all_reduce at line " in figure.svg


def test_a_run_without_calls_has_a_topology_all_the_same() -> None:
    figure = topology_figure(TOPOLOGY, simulate(lambda comm: None, 4, TOPOLOGY).traces)
    assert "bottleneck" not in figure.svg
    assert figure.text == "No link of it is known to be a bottleneck."
