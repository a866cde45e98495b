"""The report as a value: findings, the rules behind their codes, what each side stated, and the words for it.

Nothing here compares calls; it says what was found.
"""
