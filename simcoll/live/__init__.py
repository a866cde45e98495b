"""A running job seen from outside, by the black boxes that its ranks are writing.

Files are read from outside, a few kilobytes of each at a look; ranks are neither slowed nor signalled.
`simcoll.verifier` judges the records of a finished job, and `simcoll.launch` ends a stalled job of `simcoll run`.
"""
