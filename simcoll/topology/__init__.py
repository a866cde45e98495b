"""Clusters as graphs: hardware, presets, files, importers of NCCL, nvidia-smi and ASTRA-sim, placement, drawing.

What a collective costs on a graph lives in ``simcoll.estimator``.
"""
