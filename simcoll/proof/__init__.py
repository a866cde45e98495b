"""The protocols by which ranks compare their calls: the 64-bit word, rounds in the background, send and receive.

The side channel and its connections live here too. Reading a call is done in ``simcoll.recorder``; what is done with
the answer, in ``simcoll.wrapper``.
"""
