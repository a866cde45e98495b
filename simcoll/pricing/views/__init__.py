"""A priced job as text, JSON, pages, pictures and trace events.

Nothing here computes a price; the replay lives in ``simcoll.pricing``.
"""
