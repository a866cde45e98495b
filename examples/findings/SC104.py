"""The reduction of each metric comes from a settings file, and one host has last week's file.

One rank uses the sum, the others the maximum. No backend detects it, and every rank gets a number.

Run: simcoll run --standalone --nproc-per-node 4 examples/findings/SC104.py
simcoll: SC104 rank 1
"""

import torch
import torch.distributed as dist

SETTINGS = {"loss": "max"}
LAST_WEEK = {"loss": "sum"}


def main() -> None:
    dist.init_process_group("gloo")
    settings = LAST_WEEK if dist.get_rank() == 1 else SETTINGS  # what each host has on its disk
    losses = torch.tensor([0.5, 0.25]) * (dist.get_rank() + 1)
    for step, loss in enumerate(losses):
        worst = reduced(loss, settings["loss"])
        if dist.get_rank() == 0:
            print(f"step {step}: worst loss {worst:.2f}")
    dist.destroy_process_group()


def reduced(loss: torch.Tensor, how: str) -> float:
    operator = {"max": dist.ReduceOp.MAX, "sum": dist.ReduceOp.SUM}[how]
    # Bug: should be the same operator for the whole job, such as that of rank 0, broadcast.
    dist.all_reduce(loss, op=operator)
    return loss.item()


if __name__ == "__main__":
    main()
