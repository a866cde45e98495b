"""The backends of torch, with the limits of Gloo and NCCL as overlays on the table of collectives.

The engines that run ranks in one process are sub-packages. Importing this package imports no torch.
"""
