"""Expert parallel: each token goes to the rank that has its expert, and comes back; how many go where is told first.

Run: torchrun --standalone --nproc-per-node 4 examples/training/expert_parallel.py
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WIDTH, TOKENS = 16, 64


class Exchange(torch.autograd.Function):
    """all_to_all_single, whose gradients go back the way that the rows came."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, receives: list[int], sends: list[int]) -> torch.Tensor:
        ctx.splits = sends, receives
        arrived = rows.new_empty(sum(receives), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), receives, sends)
        return arrived

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return Exchange.apply(gradients[0], *ctx.splits), None, None


class MixtureOfExperts(nn.Module):
    """A router, the same on every rank, and this rank's experts."""

    def __init__(self, experts_per_rank: int) -> None:
        super().__init__()
        self.world_size = dist.get_world_size()
        torch.manual_seed(0)
        self.router = nn.Linear(WIDTH, experts_per_rank * self.world_size)
        torch.manual_seed(1 + dist.get_rank())
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(experts_per_rank)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(tokens).softmax(dim=-1).max(dim=-1)
        order = chosen.argsort(stable=True)
        sent = torch.bincount(chosen, minlength=self.router.out_features)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        counts = received.view(self.world_size, -1)  # by sender, then by expert of this rank
        sends = sent.view(self.world_size, -1).sum(dim=1).tolist()
        receives = counts.sum(dim=1).tolist()
        arrived = Exchange.apply(tokens[order], receives, sends)
        returned = Exchange.apply(self.run_experts(arrived, counts), sends, receives)
        return torch.empty_like(returned).index_copy(0, order, returned) * weights[:, None]

    def run_experts(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Each row through the expert that it was sent to."""
        experts = torch.arange(len(self.experts), device=rows.device).repeat(self.world_size)
        owner = torch.repeat_interleave(experts, counts.flatten(), output_size=len(rows))
        results = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            mine = owner == number
            results[mine] = expert(rows[mine])
        return results


def average_gradients(model: nn.Module) -> None:
    """The router is everyone's; an expert is one rank's, and has seen all ranks' tokens."""
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        if "experts" not in name:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experts-per-rank", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    dist.init_process_group()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    model = MixtureOfExperts(options.experts_per_rank).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    tokens = torch.randn(TOKENS, WIDTH, device=device)
    for step in range(options.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(tokens + model(tokens), tokens.flip(1))
        loss.backward()
        average_gradients(model)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {total.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
