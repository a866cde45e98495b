"""In which order workers take the files of tests: those that take longest first.

A worker takes a whole file. One that takes minutes and is begun last would leave the other workers idle at the end, and
pytest-xdist itself goes by the number of tests in a file: the slowest have few.
"""

from __future__ import annotations

LONGEST = (
    "tests/pytorch/test_same_results.py",
    "tests/test_documents.py",
    "tests/test_programs.py",
    "tests/test_faults.py",
    "tests/test_distribution.py",
    "tests/test_lone_ranks.py",
    "tests/test_run.py",
    "tests/test_preflight.py",
    "tests/test_gallery.py",
    "tests/test_preflight_programs.py",
    "tests/test_examples_training.py",
    "tests/test_docs_site.py",
    "tests/reports/test_html_in_browser.py",
    "tests/test_scenario_library.py",
    "tests/test_equal_backends.py",
    "tests/test_estimate_script.py",
    "tests/test_preflight_cuda.py",
    "tests/verifier/test_flight_recorder_hostile.py",
    "tests/test_dumped_programs.py",
    "tests/test_preflight_team.py",
    "tests/test_nodes.py",
)
"""By the processor time that they took when all were measured, together with the time for which they wait."""


def place_of(test: str) -> int:
    """Where the file of a test, given by its node id, stands among those that take longest; all others are behind."""
    file = test.partition("::")[0]
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)
