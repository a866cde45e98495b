"""Scenarios: reads a TOML file into steps for each rank and plays them on a backend, in many orders if asked.

The backends themselves live in ``simcoll.backends``.
"""
