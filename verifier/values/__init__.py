"""Checks that the results of collectives follow from their inputs, by the digests that ranks wrote down.

The findings name the ranks that sent the first NaN or infinity, the ranks whose result differs from the others', and
results that break the row's law of values.
"""
