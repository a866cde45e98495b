"""The programs that are compared, in two corpora.

``planted``: one to three programs with a planted bug for each finding code, and correct ones. SC107, SC203, SC305,
SC801 and SC901 to SC906 are missing: none of those programs has them as its finding. ``real``: programs after public
issue threads, each with its correct twin, which is the same file with the argument ``fixed``. All are from
``tests/programs``; the first line of each states the code, the culprits and the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.support.stated import Stated, marked_line

PROGRAMS = Path(__file__).parents[2] / "tests" / "programs"

FAULTY = (
    "op_in_train_loop",
    "op_swapped_pair",
    "size_last_batch",
    "size_all_gather_predictions",
    "size_fsdp_layer",
    "dtype_half_precision",
    "dtype_same_bytes",
    "reduce_op_metric",
    "ddp_reduce_in_loss",
    "root_broadcast",
    "root_gather",
    "splits_moe_dispatch",
    "splits_expectation",
    "layout_channels_last",
    "shape_transposed",
    "coalesced_order",
    "coalesced_missing_tensor",
    "missing_early_stop",
    "missing_in_subgroup",
    "hang_busy_rank",
    "skipped_among_alike",
    "hang_two_groups",
    "p2p_size_too_large",
    "p2p_size_too_small",
    "p2p_dtype_half",
    "p2p_tag_mismatch",
    "p2p_unmatched_receive",
    "p2p_unmatched_send",
    "group_order_differs",
    "group_of_other_members",
    "non_member_fails_next",
    "work_never_waited",
    "buffer_changed_in_flight",
    "buffers_overlap_in_flight",
    "ddp_parameter_order",
    "ddp_parameter_shape",
    "invalid_splits_sum",
    "invalid_output_dtype",
    "failed_division",
    "failed_signal",
    "exit_before_the_others",
)
CORRECT = (
    "any_source_receive",
    "checkpoint_save_and_load",
    "coalescing",
    "data_loader_workers",
    "ddp_buffers_batch_norm",
    "ddp_comm_hooks",
    "ddp_join_uneven_inputs",
    "ddp_no_sync_static_graph",
    "ddp_unused_parameters",
    "destroy_and_again",
    "dtensor_two_dimensions",
    "exchange_before_send_completes",
    "fsdp2_training",
    "many_in_flight",
    "messages_of_all_kinds",
    "mixed_spellings",
    "object_collectives",
    "opposite_orders_async",
    "pipeline",
    "subgroups_enumerated",
    "tensor_parallel",
    "threads_on_own_groups",
    "uneven_all_to_all",
)


@dataclass(frozen=True, slots=True)
class Program:
    """One program; ``code`` is empty where it is correct, ``line`` is 0 where no line can be named."""

    name: str
    path: Path
    ranks: int
    code: str = ""
    culprits: tuple[int, ...] = ()
    file: str = ""
    line: int = 0
    arguments: tuple[str, ...] = ()


def faulty(name: str) -> Program:
    """The program with a planted bug of this name, and what its header states."""
    return _stated(PROGRAMS / "bugs" / f"{name}.py")


def _stated(path: Path) -> Program:
    header = Stated(path.read_text().splitlines()[0])
    [ranks] = header.sizes
    line = 0 if header.value("line") == "none" else marked_line(path)
    return Program(path.stem, path, ranks, header.code, header.culprits, path.name, line)


def correct(name: str) -> Program:
    """The correct program of this name."""
    path = PROGRAMS / "correct" / f"{name}.py"
    [ranks] = Stated(path.read_text().splitlines()[0]).sizes
    return Program(name, path, ranks)


def real() -> list[Program]:
    """The programs after public issue threads, then their correct twins."""
    found = [_stated(path) for path in sorted((PROGRAMS / "real_bugs").glob("*.py"))]
    twins = [Program(f"{one.name}.fixed", one.path, one.ranks, arguments=("fixed",)) for one in found]
    return found + twins


def all_programs() -> list[Program]:
    """First the faulty ones, by code, then the correct ones."""
    return [*map(faulty, FAULTY), *map(correct, CORRECT)]


CORPORA = {"planted": all_programs, "real": real}
