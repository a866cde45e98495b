"""Small topologies for tests, built by hand."""

from __future__ import annotations

from simcoll.topology.graph import Topology, connect

LINK = {"a100": 240e9, "h100": 370.8e9, "b200": 721.8e9, "gb200": 721.8e9, "v100": 120e9}
"""Bytes/s of a GPU's NVLinks (NCCL 2.30.7, topo.h)."""


def servers(
    gpu: str = "h100",
    nodes: int = 2,
    gpus: int = 8,
    nics: int | None = None,
    nic: float = 50e9,
    fabric: str = "ib",
    joined: int = 1,
) -> Topology:
    """Servers with an NVSwitch for each ``joined`` of them, NICs over PCIe, and one network switch."""
    graph = Topology(name=f"{nodes} x {gpus} {gpu}", gpu=gpu, fabric=fabric)
    graph.add_node("network", kind="switch", level=1)
    nics = gpus if nics is None else nics
    for node in range(nodes):
        switch = f"nvswitch{node // joined}"
        graph.add_node(switch, kind="nvswitch", sharp=gpu not in ("a100", "v100"))
        for local in range(gpus):
            name = f"host{node}/gpu{local}"
            graph.add_node(name, kind="gpu", rank=node * gpus + local, host=node)
            connect(graph, name, switch, LINK[gpu], 0.3e-6, link="nvlink")
        for number in range(max(nics, 0)):
            _add_nic(graph, node, number, [local for local in range(gpus) if local * nics // gpus == number], nic)
    return graph


def _add_nic(graph: Topology, node: int, number: int, near: list[int], bandwidth: float) -> None:
    name = f"host{node}/nic{number}"
    graph.add_node(name, kind="nic", host=node)
    connect(graph, name, "network", bandwidth, 1e-6, link="network")
    for local in near:
        connect(graph, f"host{node}/gpu{local}", name, 64e9, 0.5e-6, link="pcie")


def pcie_box(gpus: int = 4) -> Topology:
    """One server without NVLink: two GPUs on each PCIe switch, a socket above each two switches' worth."""
    graph = Topology(name="pcie box", gpu="l40s")
    for socket in range(2):
        graph.add_node(f"cpu{socket}", kind="cpu", host=0)
    connect(graph, "cpu0", "cpu1", 22e9, 0.25e-6, link="cpu")
    for local in range(gpus):
        graph.add_node(f"gpu{local}", kind="gpu", rank=local, host=0)
        connect(graph, f"gpu{local}", f"cpu{2 * local // gpus}", 24e9, 0.25e-6, link="pcie")
    return graph


def two_leaves(uplink: float, hosts: int = 2, bandwidth: float = 50e9) -> Topology:
    """Single-GPU hosts on two leaf switches below one spine."""
    graph = Topology(name="two leaves")
    graph.add_node("spine", kind="switch", level=2)
    for leaf in range(2):
        graph.add_node(f"leaf{leaf}", kind="switch", level=1)
        connect(graph, f"leaf{leaf}", "spine", uplink, 1e-6, link="network")
        for host in range(hosts):
            name = f"gpu{leaf * hosts + host}"
            graph.add_node(name, kind="gpu", rank=leaf * hosts + host, host=name)
            connect(graph, name, f"leaf{leaf}", bandwidth, 1e-6, link="network")
    return graph
