"""Where simcoll's and torchrun's options end and the program begins."""

from pathlib import Path

import pytest

from simcoll.launch.torchrun_arguments import FLAGS, VALUED, ProgramKind, RunUsageError, asks_for_help, split


def test_own_options_are_taken_out_and_the_rest_passes_through():
    line = "--standalone --strict --mode record --nproc-per-node 4 --out=results --json train.py --mode fast --json"
    request = split(line.split(), {})
    assert (request.mode, request.out, request.json, request.strict) == ("record", Path("results"), True, True)
    assert request.torchrun == ("--standalone", "--nproc-per-node", "4", "train.py", "--mode", "fast", "--json")
    assert (request.program, request.kind, request.local_ranks) == ("train.py", ProgramKind.SCRIPT, 4)


def test_a_bare_script_has_torchruns_defaults():
    request = split(["train.py"], {})
    assert (request.mode, request.out, request.json, request.torchrun) == ("detail", None, False, ("train.py",))
    assert (request.local_ranks, request.nodes) == (1, "1")


@pytest.mark.parametrize(
    ("line", "program", "kind"),
    [
        ("-m package.train --mode x", "package.train", ProgramKind.MODULE),
        ("--module train", "train", ProgramKind.MODULE),
        ("--no-python ./run.sh -m", "./run.sh", ProgramKind.COMMAND),
        ("--no_python bash -c x", "bash", ProgramKind.COMMAND),
        ("--run-path /a/train.py", "/a/train.py", ProgramKind.SCRIPT),
        ("--nproc_per_node=2 -r 3 -t3 train.py -m", "train.py", ProgramKind.SCRIPT),
        ("--stand --nnodes 1:2 -- --odd.py", "--odd.py", ProgramKind.SCRIPT),
        ("--max-restarts 3 train.py --out o", "train.py", ProgramKind.SCRIPT),
        ("--an-option-of-tomorrow 1 train.py", "train.py", ProgramKind.SCRIPT),
        ("--a-flag-of-tomorrow train.py 1", "train.py", ProgramKind.SCRIPT),
        ("--a-slip --out o train.py", "train.py", ProgramKind.SCRIPT),
        ("--nproc-per 2 train", "train", ProgramKind.SCRIPT),
    ],
)
def test_the_program_is_found(line, program, kind):
    request = split(line.split(), {})
    assert (request.program, request.kind) == (program, kind)


@pytest.mark.parametrize("line", ["", "--mode", "--mode detail", "--nproc-per-node 4", "--out", "--"])
def test_a_line_without_a_program_is_refused(line):
    with pytest.raises(RunUsageError, match=r"no script given|needs a value"):
        split(line.split(), {})


@pytest.mark.parametrize("count", ["0", "-1"])
def test_a_number_of_ranks_that_is_none_is_refused(count):
    with pytest.raises(RunUsageError, match=f"--nproc-per-node {count}: expected a number of ranks, at least 1"):
        split([f"--nproc-per-node={count}", "train.py"], {})


def test_torchruns_environment_counts():
    request = split(["train"], {"PET_MODULE": "1", "PET_NPROC_PER_NODE": "3", "PET_NNODES": "2"})
    assert (request.kind, request.local_ranks, request.nodes) == (ProgramKind.MODULE, 3, "2")


def test_restarts_by_cause_need_restarts():
    assert split(["--max-restarts", "2", "--restart-by-cause", "train.py"]).restart_by_cause
    assert split(["--restart-by-cause", "train.py"], {"PET_MAX_RESTARTS": "1"}).restart_by_cause
    assert not split(["--max-restarts=2", "train.py", "--restart-by-cause"]).restart_by_cause
    with pytest.raises(RunUsageError, match="goes with --max-restarts"):
        split(["--restart-by-cause", "train.py"])
    with pytest.raises(RunUsageError, match="--mode off makes none"):
        split(["--mode", "off", "--max-restarts", "2", "--restart-by-cause", "train.py"])


def test_annotations_do_not_go_with_json():
    assert split(["--github", "train.py"]).github
    with pytest.raises(RunUsageError, match="does not go with --json"):
        split(["--github", "--json", "train.py"])


def test_help_is_asked_for_before_the_program_only():
    assert asks_for_help(["--help"])
    assert asks_for_help(["--nproc-per-node", "2", "-h"])
    assert not asks_for_help(["train.py", "--help"])
    assert not asks_for_help([])


@pytest.mark.slow
def test_the_flags_are_those_of_torchruns_parser():
    run = pytest.importorskip("torch.distributed.run")
    actions = [action for action in run.get_args_parser()._actions if action.option_strings]
    spelled = {name.replace("_", "-"): action.nargs == 0 for action in actions for name in action.option_strings}
    assert {name for name, flag in spelled.items() if flag} <= set(FLAGS)
    # An option that one torch has and another has not does no harm here.
    assert {name for name, flag in spelled.items() if not flag} <= set(VALUED)
