"""Draws a report: on the terminal, as JSON, as HTML."""
