"""What launchers tell their processes: who they are, and where they meet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from simcoll.dryrun.outer_job import first_host, outer_job
from simcoll.errors import ConfigurationError

TORCH = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "gpu7", "MASTER_PORT": "29501"}
SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "gpu[07-09,12]",
    "SLURM_JOB_ID": "4242",
    "SLURM_STEP_ID": "0",
}
MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "5"}

ALONE: dict[str, Mapping[str, str]] = {
    "nothing": {},
    "torchrun of one": TORCH | {"RANK": "0", "WORLD_SIZE": "1"},
    "a batch script": {"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "7"},
    "a shell in a step": SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    "torchrun of one within a step": SLURM | TORCH | {"RANK": "0", "WORLD_SIZE": "1"},
    "a rank without a size": {"RANK": "3"},
}

SEVERAL = {
    "torchrun": (
        TORCH | {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": "2"},
        (1, 4, "gpu7", 29501, True, 2),
    ),
    "Ray Train": (TORCH, (1, 4, "gpu7", 29501, False, 1)),
    "srun": (SLURM, (2, 3, "gpu07", 20_000 + 4242 * 7 % 10_000, False, 1)),
    "srun with a port": (SLURM | {"MASTER_PORT": "77"}, (2, 3, "gpu07", 77, False, 1)),
    "torchrun under srun": (SLURM | TORCH, (1, 4, "gpu7", 29501, False, 1)),
    "mpirun": (MPI, (0, 2, "a", 5, False, 1)),
}

WRONG = {
    "nowhere to meet": ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
    "mpirun without an address": ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MASTER_ADDR"),
    "beyond the size": (TORCH | {"RANK": "4"}, "RANK=4"),
    "no number": (TORCH | {"RANK": "one"}, "RANK=one"),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_process_that_is_alone(name: str) -> None:
    assert outer_job(ALONE[name]) is None


@pytest.mark.parametrize("name", SEVERAL)
def test_one_of_several_knows_its_place(name: str) -> None:
    environment, expected = SEVERAL[name]
    job = outer_job(environment)
    assert job is not None
    assert (job.number, job.count, job.host, job.port, job.agent, job.beside) == expected


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_understood_is_refused_with_a_way_out(name: str) -> None:
    environment, words = WRONG[name]
    with pytest.raises(ConfigurationError, match=words) as caught:
        outer_job(environment)
    assert "alone" in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu7", "gpu7"),
        ("gpu7,gpu9", "gpu7"),
        ("gpu[007-010,12],login1", "gpu007"),
        ("rack[1-2]-n,x", "rack1-n"),
        ("10.99.0.1,10.99.0.2", "10.99.0.1"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list_of_slurm(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
