"""Scenarios: reads a TOML file into steps for each rank and plays them on a backend, optionally in many orders.

The backends themselves live in ``simcoll.backends``.

A scenario becomes one list of steps for each rank: loops are unrolled, and a fault rewrites the list. A player plays
the list on numpy arrays or on torch tensors, so that all backends play the same. Each step runs in a function whose
code object names the file and line of the step: code that asks for the caller of a collective finds that line.
"""
