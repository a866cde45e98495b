"""One rank of a scenario on real Gloo: ``python -m simcoll.simulation.gloo_rank FILE [RESULTS]`` under a launcher.

The rank writes the results of its calls into the folder RESULTS, as ``rank00000.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed import distributed_c10d

from simcoll.recorder.session import active_session
from simcoll.simulation.play_torch import play_on_torch
from simcoll.simulation.player import write_results
from simcoll.simulation.reader import read_scenario
from simcoll.wrapper.hooks import enable


def main(arguments: list[str]) -> None:
    """Play the rank of this process."""
    scenario = read_scenario(Path(arguments[0]))
    session = active_session()
    if session is not None and scenario.values != "off":
        enable(session.mode, session.out, values=scenario.values)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    _meet(rank)
    player = play_on_torch(scenario)
    if len(arguments) > 1:
        write_results(Path(arguments[1]), rank, player.results)
    dist.destroy_process_group()


def _meet(rank: int) -> None:
    """Wait until every rank has connected: a rank that ended before a peer had would end that peer's connection too."""
    store = distributed_c10d._get_default_store()
    store.set(f"simcoll/connected/{rank}", "")
    store.wait([f"simcoll/connected/{other}" for other in range(dist.get_world_size())])


if __name__ == "__main__":
    main(sys.argv[1:])
