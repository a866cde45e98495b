"""Scenarios: reads a TOML file into steps for each rank and plays them on a backend, optionally in many orders.

The backends themselves live in ``simcoll.backends``.
"""
