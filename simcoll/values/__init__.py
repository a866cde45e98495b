"""What a rank works out of the values that it gives to a collective and gets from it: digests of fixed size.

The laws that they must keep are a column of the table, :mod:`simcoll.spec.value_laws`; who broke them is for
:mod:`simcoll.verifier.values`.
"""
