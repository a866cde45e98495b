"""The environment variables that identify a rank, set to those of the dry run.

torchrun's variables are set for every rank. Those of Slurm, Open MPI and PMI are replaced where they are set: a script
that reads ``SLURM_PROCID`` first must not find that of the batch step which runs the dry run.
"""

from __future__ import annotations

from collections.abc import MutableMapping

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_RANK = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE = (
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "OMPI_UNIVERSE_SIZE",
)
_LOCAL_RANK = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = (
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
)
_NODE = ("SLURM_NODEID", "NODE_RANK")
_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES", "NNODES")
_OTHERS_PREFIX = "TORCHELASTIC_"


def set_rank_variables(environ: MutableMapping[str, str], rank: int, world_size: int, local_size: int) -> None:
    """Set the variables of ``rank`` (global) in a job of nodes with ``local_size`` ranks each."""
    for name in [name for name in environ if name.startswith(_OTHERS_PREFIX)]:
        del environ[name]
    node, local = divmod(rank, local_size)
    nodes = -(-world_size // local_size)
    environ.update(_of_torchrun(rank, world_size, local, local_size, node, nodes))
    environ.update(dict.fromkeys(_THREADS, "1"))
    values = (
        (_RANK, rank),
        (_SIZE, world_size),
        (_LOCAL_RANK, local),
        (_LOCAL_SIZE, local_size),
        (_NODE, node),
        (_NODES, nodes),
    )
    environ.update({name: str(value) for names, value in values for name in names if name in environ})


def _of_torchrun(rank: int, size: int, local: int, local_size: int, node: int, nodes: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "preflight",
    }
