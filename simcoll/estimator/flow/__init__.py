"""The flow engine: an algorithm's transfers, routed over the topology, share links by max-min fairness.

The schedules of all algorithms and the sharing of links live here. The engine is the oracle of the closed form.
"""
