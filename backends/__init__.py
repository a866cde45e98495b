"""What Gloo and NCCL cannot do, as overlays on the table of collectives, and which backends there are.

The engines that run ranks in one process are sub-packages. Importing this package imports no torch.
"""
