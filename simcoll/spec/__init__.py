"""The table that drives everything: a row per collective, the laws of its flows, its meaning, the 64-bit word.

Nothing else in the project knows what a collective is. What a backend cannot do is an overlay in
``simcoll.backends``.
"""
