"""Whether what came out of collectives is what went in, by the digests that ranks wrote down.

Who sent the first NaN or infinity, who holds another result than the others, and which results are not what the row's
law of values makes of the inputs.
"""
