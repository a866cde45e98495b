"""The table that drives everything: a row per collective, the laws of its flows, its meaning, the 64-bit word.

No other package knows what a collective is. The limits of a backend are an overlay in ``simcoll.backends``.

Two laws prove a call. *Agreement*: every rank states the same row, dtype, reduce operator, root and, where sizes are
equal, count. *Flow*: rank i sends to rank j as much as j expects from i. Uneven splits, roots and empty buffers are
cases of the second law and need no rule of their own. The table generates tests too: the numpy meaning of each row is
compared with real Gloo.
"""
