"""CUDA's streams, events and graphs as the wrapper needs them: when device calls ran, and in which order they launch.

Nothing here waits for a device. What is compared between ranks lives in ``simcoll.proof``.
"""
