"""What is shown beside the findings: the summary, progress, last calls, the timeline.

Nothing here changes a verdict; renderers live in ``simcoll.reports``.
"""
