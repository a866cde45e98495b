"""The price of a whole job: recorded or simulated calls are replayed in virtual time on a topology.

The price of one collective comes from ``simcoll.estimator``. How a priced job is shown lives in ``views``.
"""
