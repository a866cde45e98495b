"""The report as a value: findings, the rules behind their codes, what each side stated, and the words for it.

This package compares no calls; it states what was found.
"""
