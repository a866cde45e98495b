"""One rank evaluates in bfloat16 and gathers its scores so: the others would read its bytes as float32.

Run: simcoll run --standalone --nproc-per-node 3 examples/half_precision_rank.py
simcoll: SC103 rank 1
"""

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    dtype = torch.bfloat16 if dist.get_rank() == 1 else torch.float32
    scores = torch.ones(6, dtype=dtype)
    everyone = torch.empty(6 * dist.get_world_size(), dtype=dtype)
    dist.all_gather_into_tensor(everyone, scores)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
