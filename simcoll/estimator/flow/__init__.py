"""The flow engine: an algorithm's transfers, routed over the topology, share links by max-min fairness.

The schedules of all algorithms live here, and how links are shared. It is the oracle of the closed form.
"""
