# ranks=3
"""Objects of very different sizes, None and empty lists among them."""

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
mine = [None, "x" * 5000, {"list": []}][rank]
everything = [None] * 3
dist.all_gather_object(everything, mine)
assert [type(item) for item in everything] == [type(None), str, dict]
collected = [None] * 3 if rank == 1 else None
dist.gather_object(mine, collected, dst=1)
handed = [None]
dist.scatter_object_list(handed, ["a", "bb", {"c": 3}] if rank == 0 else None, src=0)
assert handed[0] == ["a", "bb", {"c": 3}][rank]
config = [{"seed": 7}] if rank == 2 else [None]
dist.broadcast_object_list(config, src=2)
assert config == [{"seed": 7}]
