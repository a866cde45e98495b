"""One rank of a scenario on real Gloo: ``python -m simcoll.scenario_rank FILE [RESULTS]`` under a launcher.

The rank writes what its calls brought it into the folder RESULTS, as ``rank00000.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from simcoll.scenario_reader import read_scenario
from simcoll.scenario_stage import Result
from simcoll.scenario_torch import play_on_torch


def main(arguments: list[str]) -> None:
    """Play the rank that the environment names."""
    scenario = read_scenario(Path(arguments[0]))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results = play_on_torch(scenario)
    if len(arguments) > 1:
        document = [[each.line, each.total.real, each.total.imag] for each in results]
        (Path(arguments[1]) / f"rank{rank:05d}.json").write_text(json.dumps(document), encoding="utf-8")
    dist.destroy_process_group()


def read_results(folder: Path, rank: int) -> list[Result] | None:
    """What a rank wrote; None where it did not come to it."""
    try:
        rows = json.loads((folder / f"rank{rank:05d}.json").read_text(encoding="utf-8"))
    except OSError:
        return None
    return [Result(line, complex(real, imaginary)) for line, real, imaginary in rows]


if __name__ == "__main__":
    main(sys.argv[1:])
