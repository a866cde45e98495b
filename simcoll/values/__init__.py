"""Digests of fixed size, which a rank computes of the values that it sends in a collective and receives from it.

:mod:`simcoll.spec.value_laws` states the laws that digests must keep, a column of the table;
:mod:`simcoll.verifier.values` finds the ranks that broke them.
"""
