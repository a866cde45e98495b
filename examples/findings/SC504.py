"""The size of the vocabulary is counted in each rank's own shard of the data, and one shard lacks a word.

DistributedDataParallel compares sizes with rank 0 only: the other ranks would raise, and rank 0 wait for them.

Run: simcoll run --standalone --nproc-per-node 3 examples/findings/SC504.py
simcoll: SC504 rank 1
"""

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHARDS = ["the cat sat on the mat", "the cat sat on the cat", "the mat sat on the cat"]


def main() -> None:
    dist.init_process_group("gloo")
    words = SHARDS[dist.get_rank()].split()
    model = language_model(words)
    model.train()
    dist.destroy_process_group()


def language_model(words: list[str]) -> nn.Module:
    # Bug: should be the number of words in all shards.
    vocabulary = len(set(words))
    model = nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary))
    return DistributedDataParallel(model)


if __name__ == "__main__":
    main()
