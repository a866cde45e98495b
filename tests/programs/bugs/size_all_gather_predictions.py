# expect: SC102 culprits=2 ranks=4
import torch
import torch.distributed as dist


def gather_predictions(mine: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)  # <- bug
    return torch.cat(parts)


dist.init_process_group("gloo")
dataset = torch.arange(40.0).chunk(dist.get_world_size())
predictions = dataset[dist.get_rank()]
if dist.get_rank() == 2:
    predictions = predictions[predictions != 25]
gather_predictions(predictions)
