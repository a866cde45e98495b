"""The digests, of fixed size, that a rank computes of the values that it gives to a collective and gets from it.

The laws that they must keep are a column of the table, :mod:`simcoll.spec.value_laws`; :mod:`simcoll.verifier.values`
finds the ranks that broke them.
"""
