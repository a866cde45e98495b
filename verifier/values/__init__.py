"""Judges the values of a job by the digests that its ranks wrote down.

Of collectives: the ranks that sent the first NaN or infinity (SC901), those whose result differs from the others'
(SC902), and results that break the row's law of values (SC903). Of what ranks hold alike: weights, buffers and
optimizer states that have drifted apart (SC904), and activations for which they draw different random numbers (SC906).
Of what they have to share out: equal batches (SC905). And a note of what was not checked.
"""
