"""Each rank writes what it has recorded so far, and where its threads are, while the job goes on.

Run: simcoll run --mode record --standalone --nproc-per-node 2 examples/dump_while_it_runs.py
simcoll: clean
"""

import tempfile

import torch
import torch.distributed as dist

import simcoll


def main() -> None:
    dist.init_process_group("gloo")
    total = torch.ones(4)
    dist.all_reduce(total)
    folder = simcoll.dump(tempfile.mkdtemp())
    print(f"rank {dist.get_rank()} left {', '.join(sorted(path.name for path in folder.iterdir()))}")
    dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
