"""Renders reports and prices: terminal, JSON, HTML, SARIF, trace events. Nothing here judges or prices.

``report.html`` and the pages of prices have one shell (:mod:`simcoll.reports.page_shell`). What a page shows is a value
that Python computes in full; timelines go into the page as packed numbers, and its scripts only paint what is in view,
and where calls share a pixel the worst of them. ``page/`` has the template, style and scripts, ``page/vendor/`` the
bundled libraries that draw (``make vendor``).
"""
