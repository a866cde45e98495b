"""Judges what ranks recorded: laws between the calls of one collective, and what became of the job."""
