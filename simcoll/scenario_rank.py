"""One rank of a scenario on real Gloo: ``python -m simcoll.scenario_rank FILE [RESULTS]`` under a launcher.

The rank writes what its calls brought it into the folder RESULTS, as ``rank00000.json``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

from simcoll.scenario_reader import read_scenario
from simcoll.scenario_stage import write_results
from simcoll.scenario_torch import play_on_torch


def main(arguments: list[str]) -> None:
    """Play the rank that the environment names."""
    scenario = read_scenario(Path(arguments[0]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = play_on_torch(scenario)
    if len(arguments) > 1:
        write_results(Path(arguments[1]), rank, stage.results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
