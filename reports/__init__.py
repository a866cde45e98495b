"""Renders reports and prices: terminal, JSON, HTML, SARIF, trace events. This package neither judges nor prices.

``report.html`` and the pages of prices have one shell (:mod:`simcoll.reports.page_shell`). Python computes the value
that a page shows in full; timelines go into the page as packed numbers, and its scripts only paint what is in view,
and where calls share a pixel the worst of them. ``page/`` has the template, style and scripts, ``page/vendor/`` the
bundled libraries that draw (``make vendor``).
"""
