"""A tokenizer knows more words than the model's embedding: the rank that meets such a word fails.

The others wait for its gradient, and would fail much later with an error about the connection.

Run: simcoll run --standalone --nproc-per-node 4 examples/findings/SC701.py
simcoll: SC701 rank 2
"""

import torch
import torch.distributed as dist
from torch import nn

WORDS = 100


def main() -> None:
    dist.init_process_group("gloo")
    embedding = nn.Embedding(WORDS, 8)
    for step in range(4):
        tokens = torch.arange(16) + step * 16
        if dist.get_rank() == 2:
            tokens += 50  # this rank's shard has rarer words
        train(embedding, tokens)
    dist.destroy_process_group()


def train(embedding: nn.Embedding, tokens: torch.Tensor) -> None:
    # Bug: should be an embedding of as many words as the tokenizer has.
    embedding(tokens).sum().backward()
    assert embedding.weight.grad is not None
    dist.all_reduce(embedding.weight.grad)


if __name__ == "__main__":
    main()
