"""A job as it is now: what its black boxes say while its ranks write them.

Files are read from outside, a few kilobytes of each at a look; ranks are neither slowed nor signalled. What a finished
job left is judged by `simcoll.verifier`, and a stalled job of `simcoll run` is watched by `simcoll.launch`.
"""
