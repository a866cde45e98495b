"""Plays one rank's part of a random program: ``player.py PROGRAM.json``; what it holds at its end is left beside it."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.playing import Kept, run, torch_comm

path = Path(sys.argv[1])
program = json.loads(path.read_text())
dist.init_process_group("gloo")
rank, kept = dist.get_rank(), Kept()
comm = torch_comm()()
run(program["sources"][rank], comm, kept.names(torch.from_numpy))
held = {
    name: value.numpy() if isinstance(value, torch.Tensor) else np.array(json.dumps(value))
    for name, value in kept.things.items()
}
np.savez(path.with_name(f"kept{rank}.npz"), **held)
