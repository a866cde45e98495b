"""The report as one self-contained HTML page: the terminal's picture, every character from a trace escaped."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from simcoll.reports.terminal import TerminalReport
from simcoll.verifier.finding import Report

_WIDTH = 100
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>simcoll report</title>
<style>
{stylesheet}
body {{ color: {foreground}; background-color: {background}; margin: 1rem; }}
pre {{ font-family: Menlo, "DejaVu Sans Mono", Consolas, monospace; line-height: 1.25; overflow-x: auto; }}
</style>
</head>
<body>
<main><pre><code style="font-family:inherit">{code}</code></pre></main>
</body>
</html>
"""


def html_report(report: Report) -> str:
    """A page without scripts and without anything from the network."""
    console = Console(record=True, file=StringIO(), width=_WIDTH, force_terminal=True, color_system="truecolor")
    console.print(TerminalReport(report, speeds=True))
    return console.export_html(code_format=_PAGE, inline_styles=False)
