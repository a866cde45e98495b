"""Orders the files of tests for the workers: those that take longest first.

A worker takes a whole file. One that takes minutes and is begun last would leave the other workers idle at the end, and
pytest-xdist itself goes by the number of tests in a file: the slowest have few.
"""

from __future__ import annotations

LONGEST = (
    "tests/pytorch/test_same_results.py",
    "tests/launch/nodes/test_exchange.py",
    "tests/documents/test_documents.py",
    "tests/programs/test_programs.py",
    "tests/programs/test_faults.py",
    "tests/release/test_distribution.py",
    "tests/dryrun/test_process_pool.py",
    "tests/cli/test_run.py",
    "tests/dryrun/test_driver.py",
    "tests/documents/test_gallery.py",
    "tests/dryrun/test_driver_programs.py",
    "tests/documents/test_examples_training.py",
    "tests/documents/test_docs_site.py",
    "tests/reports/test_html_report_in_browser.py",
    "tests/simulation/test_library.py",
    "tests/programs/test_equal_backends.py",
    "tests/cli/test_estimate_script.py",
    "tests/dryrun/test_driver_cuda.py",
    "tests/verifier/flight_recorder/test_entries_hostile.py",
    "tests/programs/test_dumped_programs.py",
    "tests/dryrun/test_distributed.py",
    "tests/launch/test_agent_nodes.py",
    "tests/release/test_cold_starts.py",
    "tests/dryrun/test_endings_divergence.py",
    "tests/plan/test_program_dry_run.py",
    "tests/cli/test_run_advice.py",
    "tests/programs/test_real_bugs.py",
    "tests/simulation/test_explore.py",
    "tests/reports/test_terminal_views.py",
    "tests/reports/test_price_page_in_browser.py",
    "tests/recorder/test_steps.py",
    "tests/dryrun/rank/test_sent_values.py",
    "tests/dryrun/test_private_files.py",
    "tests/proof/test_p2p_check.py",
    "tests/wrapper/test_replicas.py",
)
"""By the processor time that they took when all were measured, together with the time for which they wait."""


def place_of(test: str) -> int:
    """Where the file of a test, given by its node id, stands among those that take longest; all others are behind."""
    file = test.partition("::")[0]
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)
