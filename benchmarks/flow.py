"""How fast the flow engine is: every algorithm at 8 to 16,384 ranks, the topology's preparation included and apart.

python -m benchmarks.flow [--ranks N ...]
"""

from __future__ import annotations

import argparse
import resource
import time

from simcoll.estimator.flow.engine import price
from simcoll.topology.graph import Topology, connect, flat

CASES = (
    ("all_reduce", "ring"),
    ("all_reduce", "tree"),
    ("all_reduce", "halving_doubling"),
    ("all_reduce", "hierarchical"),
    ("all_gather", "pat"),
    ("all_to_all", "pairwise"),
    ("all_to_all", "hierarchical"),
    ("all_to_all", "direct"),
)
SIZE = 1 << 30


def three_levels(ranks: int, hosts_per_leaf: int = 8, leaves_per_pod: int = 16) -> Topology:
    """Hosts of eight GPUs with a NIC each under leaves, spines in pods, and cores: full bandwidth at each level."""
    graph = Topology(name=f"three levels {ranks}")
    hosts = max(1, ranks // 8)
    spines = max(1, hosts_per_leaf * 8 // 8)
    for host in range(hosts):
        leaf = f"leaf{host // hosts_per_leaf}"
        graph.add_node(leaf, kind="switch", level=1)
        graph.add_node(f"nvswitch{host}", kind="nvswitch", host=host, sharp=True)
        for gpu in range(min(8, ranks)):
            rank = host * 8 + gpu
            graph.add_node(f"gpu{rank}", kind="gpu", rank=rank, host=host, model="h100")
            graph.add_node(f"nic{rank}", kind="nic", host=host)
            connect(graph, f"gpu{rank}", f"nvswitch{host}", 450e9, 0.5e-6, link="nvlink")
            connect(graph, f"gpu{rank}", f"nic{rank}", 64e9, 0.5e-6, link="pcie")
            connect(graph, f"nic{rank}", leaf, 50e9, 0.5e-6, link="network")
    leaves = -(-hosts // hosts_per_leaf)
    for leaf_number in range(leaves):
        pod = leaf_number // leaves_per_pod
        for spine in range(spines):
            graph.add_node(f"spine{pod}.{spine}", kind="switch", level=2)
            connect(graph, f"leaf{leaf_number}", f"spine{pod}.{spine}", 400e9, 0.5e-6, link="network")
    for pod in range(-(-leaves // leaves_per_pod)):
        for spine in range(spines):
            for core in range(leaves_per_pod):
                graph.add_node(f"core{spine}.{core}", kind="switch", level=3)
                connect(graph, f"spine{pod}.{spine}", f"core{spine}.{core}", 400e9, 0.5e-6, link="network")
    return graph


def measure(name: str, ranks: int) -> float:
    """Print a line for each case; returns the seconds in all."""
    start = time.perf_counter()
    graph = flat(ranks, 50e9, 1e-6) if name == "flat" else three_levels(ranks)
    print(f"{name} of {ranks:,} ranks: built in {1e3 * (time.perf_counter() - start):,.0f} ms")
    for op, algorithm in CASES:
        if algorithm == "hierarchical" and (name == "flat" or ranks < 16):
            continue
        began = time.perf_counter()
        estimate = price(op, SIZE, graph, algorithm=algorithm)
        cold = time.perf_counter() - began
        price(op, 2 * SIZE, graph, algorithm=algorithm)
        warm = time.perf_counter() - began - cold
        times = f"{1e3 * cold:>12,.1f} ms {1e3 * warm:>10,.2f} ms"
        print(f"  {op:<12}{algorithm:<18}{1e6 * estimate.seconds:>14,.0f} µs {times}")
    return time.perf_counter() - start


def main() -> None:
    """Measure both topologies at each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 1024, 16384])
    options = parser.parse_args()
    print(f"  {'1 GiB of':<30}{'costs':>17} {'priced in':>15} {'other sizes':>13}")
    for name in ("flat", "fat tree"):
        for ranks in options.ranks:
            print(f"  all: {measure(name, ranks):.2f} s")
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
