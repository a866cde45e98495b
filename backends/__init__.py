"""The backends of torch, with what Gloo and NCCL cannot do as overlays on the table of collectives.

The engines that run ranks in one process are sub-packages. Importing this package imports no torch.
"""
