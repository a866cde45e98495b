"""What a training step costs before it is run, from descriptions of a model, a parallel layout and a cluster.

Models are data here, and so is what GPUs reach; the price of one collective comes from ``simcoll.estimator``.
"""
