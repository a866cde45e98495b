"""The parts of a report beside its findings: the summary, progress, last calls, the timeline.

This package changes no verdict; renderers live in ``simcoll.reports``.
"""
