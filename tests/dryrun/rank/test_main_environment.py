"""A rank of a dry run reads in its environment who it is there, whatever the dry run itself was started in."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from simcoll.dryrun.rank.main import set_rank_variables

OUTER = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "gpu7",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_ERROR_FILE": "error.json",
    "TORCHELASTIC_RUN_ID": "outer",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_JOB_ID": "4242",
    "PATH": "/bin",
}


def told(environment: dict[str, str], rank: int, size: int, local: int) -> dict[str, str]:
    environment = dict(environment)
    set_rank_variables(environment, rank, size, local)
    return environment


def test_a_rank_is_told_what_torchrun_tells() -> None:
    environment = told({}, 13, 20, 8)
    expected = {"RANK": "13", "WORLD_SIZE": "20", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1"}
    assert environment.items() >= expected.items()
    assert environment["GROUP_WORLD_SIZE"] == "3"
    assert not any(name.startswith(("SLURM_", "OMPI_", "PMI")) for name in environment)


def test_nothing_of_the_outer_launcher_is_left() -> None:
    environment = told(OUTER, 13, 20, 8)
    assert environment["RANK"] == environment["SLURM_PROCID"] == "13"
    assert environment["WORLD_SIZE"] == environment["SLURM_NTASKS"] == "20"
    assert (environment["SLURM_LOCALID"], environment["SLURM_NODEID"], environment["SLURM_NNODES"]) == ("5", "1", "3")
    assert environment["SLURM_NTASKS_PER_NODE"] == "8"
    assert environment["MASTER_ADDR"] == "127.0.0.1"
    assert environment["TORCHELASTIC_RUN_ID"] == "preflight"
    assert not {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"} & set(environment)


def test_what_states_no_rank_stays() -> None:
    environment = told(OUTER, 0, 4, 4)
    assert (environment["SLURM_JOB_ID"], environment["PATH"]) == ("4242", "/bin")
