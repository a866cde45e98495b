"""The report as a value: findings, the rules behind their codes, what each side stated, and the words for it.

Nothing here compares calls; it says what was found.

A field that a record leaves out is left out of all ranks' statements (:mod:`simcoll.verifier.findings.sides`), and
what depends on it is not computed. Where the root is hidden, the flows to and from it still add up under a number that
stands for it.
"""
