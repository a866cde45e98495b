"""``simcoll estimate``: one size, a range, several topologies; as a table, explained, or as JSON."""

import json
import subprocess
import sys

import pytest

import simcoll
from simcoll.cli import main


def run(capsys, *arguments):
    code = main(["estimate", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_one_size_names_time_algorithm_bandwidth_and_bottleneck(capsys):
    code, out, err = run(capsys, "all_reduce", "--bytes", "1GiB", "--gpu", "h100", "--nodes", "2")
    found = simcoll.estimate("all_reduce", 1 << 30, simcoll.cluster(gpu="h100", nodes=2))
    assert (code, err) == (0, "")
    assert f"{found.seconds * 1e6:,.1f} us" in out
    assert f"{found.bus_bandwidth / 1e9:,.2f} GB/s" in out
    assert f"{found.algorithm} {found.protocol}" in out
    assert "bottleneck" in out
    assert max(map(len, out.splitlines())) <= 80


def test_explained_the_terms_add_up(capsys):
    code, out, _ = run(capsys, "all_gather", "--bytes", "1MiB", "--gpu", "h100", "--explain")
    found = simcoll.estimate("all_gather", 1 << 20, simcoll.cluster(gpu="h100"))
    assert code == 0
    assert all(f"{seconds * 1e6:,.1f} us" in out for _, seconds in found.terms)
    assert sum(seconds for _, seconds in found.terms) == pytest.approx(found.seconds)


def test_a_range_is_a_table_like_that_of_nccl_tests(capsys):
    code, out, _ = run(capsys, "all_reduce", "--bytes", "1KiB:1MiB", "--factor", "32", "--gpu", "a100")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines() if "iB" in line] == [
        ["1", "KiB"],
        ["32", "KiB"],
        ["1", "MiB"],
    ]


def test_one_rank_is_no_ranks(capsys):
    _, out, _ = run(capsys, "all_reduce", "--bytes", "4096", "--gpu", "h100", "--gpus-per-node", "1")
    assert out.splitlines()[0] == "all_reduce of 4 KiB on 1 rank of 1 x 1 h100"


def test_a_barrier_has_one_time(capsys):
    assert main(["estimate", "barrier", "--gpu", "h100", "--json"]) == 0
    assert [each["bytes"] for each in json.loads(capsys.readouterr().out)["estimates"]] == [0]


def test_several_topologies_are_compared(capsys):
    code, out, _ = run(capsys, "all_reduce", "--bytes", "1GiB", "--gpu", "h100", "--compare", "dgx-b200")
    slow, fast = (
        simcoll.estimate("all_reduce", 1 << 30, each).seconds
        for each in (simcoll.cluster(gpu="h100"), simcoll.preset("dgx-b200"))
    )
    assert code == 0
    assert f"(x{fast / slow:.2f})" in out


def test_json_has_every_estimate(capsys):
    code, out, _ = run(capsys, "all_reduce", "--bytes", "1KiB:2KiB", "--gpu", "h100", "--ranks", "0-3", "--json")
    document = json.loads(out)
    assert (code, document["schema"]) == (0, "simcoll.estimate/1")
    assert [(each["bytes"], each["ranks"]) for each in document["estimates"]] == [(1024, 4)]
    found = simcoll.estimate("all_reduce", 1024, simcoll.cluster(gpu="h100"), ranks=range(4))
    assert document["estimates"][0]["seconds"] == found.seconds


@pytest.mark.parametrize("engine", ["closed", "flow"])
def test_the_bare_graph_by_either_engine(capsys, engine, tmp_path):
    simcoll.write_topology(tmp_path / "flat.json", simcoll.flat(8, 50e9, 1e-6))
    options = ["--bare", "--engine", engine, "--algorithm", "ring", "--topology", str(tmp_path / "flat.json"), "--json"]
    _, out, _ = run(capsys, "all_reduce", "--bytes", "1GiB", *options)
    assert json.loads(out)["estimates"][0]["seconds"] == pytest.approx(37595e-6, rel=0.005)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("allreduce", "--gpu", "h100"), "unknown op 'allreduce'"),
        (("all_reduce",), "no topology is given"),
        (("all_reduce", "--gpu", "h1000"), "h100"),
        (("all_reduce", "--gpu", "h100", "--bytes", "1XB"), "expected bytes such as"),
        (("all_reduce", "--gpu", "h100", "--ranks", "0-x"), "expected ranks and ranges"),
        (("all_reduce", "--gpu", "h100", "--ranks", "7-8"), "from 0 to 7"),
        (("all_reduce", "--gpu", "h100", "--algorithm", "pairwise"), "no algorithm 'pairwise'"),
        (("all_reduce", "--gpu", "h100", "--factor", "1"), "at least 2"),
        (("all_reduce", "--gpu", "h100", "--compare", "nosuch.json"), "nosuch.json"),
        (("all_reduce", "--gpu", "h100", "--executor", "tcp://127.0.0.1:1"), "--executor goes with a script"),
        ((".", "--gpu", "h100", "--executor", "tcp://127.0.0.1:1"), "--executor goes with a script"),
    ],
)
def test_what_cannot_be_priced_is_said_in_one_line(capsys, arguments, said):
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("topology", ["dgx-h100", "gcp-a3-high"])
@pytest.mark.parametrize("extra", [(), ("--explain",), ("--compare", "aws-p6-b200.48xlarge")])
def test_no_figure_of_a_table_is_cut_off_at_80_columns(capsys, monkeypatch, topology, extra):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, "all_reduce", "--bytes", "1KiB:16GiB", "--topology", topology, "--nodes", "2", *extra)
    assert code == 0
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_pricing_a_collective_loads_what_it_needs():
    """A count, as times depend on the machine: networkx is most of the time, and numpy, torch or jinja2 not needed."""
    program = (
        "import sys; from simcoll.cli import main; main(['estimate', 'all_reduce', '--gpu', 'h100', '--nodes', '2'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    loaded = done.stderr.split()
    assert len([name for name in loaded if name.split(".")[0] == "simcoll"]) <= 45
    assert {"jinja2", "numpy", "torch"} & set(loaded) == set()
