"""One rank of a scenario on real Gloo: ``python -m simcoll.simulation.gloo_rank FILE [RESULTS]`` under a launcher.

The rank writes the results of its calls into the folder RESULTS, as ``rank00000.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

from simcoll.simulation.play_torch import play_on_torch
from simcoll.simulation.player import write_results
from simcoll.simulation.reader import read_scenario


def main(arguments: list[str]) -> None:
    """Play the rank of this process."""
    scenario = read_scenario(Path(arguments[0]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    player = play_on_torch(scenario)
    if len(arguments) > 1:
        write_results(Path(arguments[1]), rank, player.results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
