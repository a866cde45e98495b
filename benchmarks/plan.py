"""How long `simcoll plan` takes: one plan, ten thousand layouts of 1,024 GPUs, and of 16 times as many GPUs.

CPU time of one process, without the start of Python. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

from rich.console import Console

from benchmarks.tables import bench_table
from simcoll.plan.layout import Layout
from simcoll.plan.model import Model
from simcoll.plan.model_files import known_models, model_named
from simcoll.plan.network import network_asked
from simcoll.plan.planning import plan, plan_of
from simcoll.plan.rates import Framework
from simcoll.plan.search import candidates, search
from simcoll.topology.request import TopologyRequest

MODELS = ("llama3-70b", "qwen3-235b-a22b", "deepseek-v3")
SMALL, LARGE = 128, 2048
SEQUENCES = 4


def spent(work: Callable[..., object], *given: object, **options: object) -> float:
    """Seconds of CPU time that a call takes."""
    before = time.process_time()
    work(*given, **options)
    return time.process_time() - before


def drawn(nodes: int, count: int) -> list[tuple[Model, Layout]]:
    """So many of all layouts of three models on H100s."""
    fixed = {"global_batch": nodes * 8 * SEQUENCES}
    models = map(model_named, MODELS)
    every = [(model, layout) for model in models for layout in candidates(model, nodes * 8, fixed)]
    return random.Random(0).sample(every, count)


def price(layouts: Sequence[tuple[Model, Layout]], nodes: int) -> None:
    """Price layouts one after the other."""
    network = network_asked(TopologyRequest(gpu="h100", nodes=nodes))
    for model, layout in layouts:
        plan_of(model, layout, network, Framework("megatron"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", type=int, default=10_000, help="layouts of each size (default: 10,000)")
    options = parser.parse_args()
    table = bench_table("simcoll plan: CPU time", "what", "GPUs", "seconds", left=("what",))
    known_models()
    for model in MODELS:
        table.add_row(f"the first plan of {model}", "512", f"{spent(plan, model, gpu='h100', nodes=64):.4f}")
    for nodes in (SMALL, LARGE):
        layouts = drawn(nodes, options.layouts)
        table.add_row(f"{len(layouts):,} layouts", f"{nodes * 8:,}", f"{spent(price, layouts, nodes):.2f}")
    for nodes in (SMALL, LARGE):
        fixed = {"global_batch": nodes * 8 * SEQUENCES, "seq_len": 8192}
        network = network_asked(TopologyRequest(gpu="h100", nodes=nodes))
        seconds = spent(search, model_named("deepseek-v3"), network, Framework("torchtitan"), fixed)
        table.add_row("--search for deepseek-v3", f"{nodes * 8:,}", f"{seconds:.2f}")
    Console(width=80).print(table)


if __name__ == "__main__":
    main()
