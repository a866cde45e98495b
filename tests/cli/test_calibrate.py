"""``simcoll calibrate``: real Gloo ranks are timed, and the topology that is written gives back what they took."""

import json
import sys
from importlib import metadata

import pytest

import simcoll
from simcoll.cli.calibrate import Calibrated, launch_command, read, read_file
from simcoll.estimator.measured import Measurement, curves, seconds
from simcoll.topology.graph import TopologyError, check, hosts, ranks


def calibration(names=("a", "a"), rows=None):
    rows = rows or [Measurement("all_reduce", len(names), size, 10e-6 + size / 1e9) for size in (1024, 1 << 20)]
    return Calibrated("gloo", "cpu", tuple(names), tuple(rows), (Measurement("all_reduce", len(names), 1536, 11e-6),))


def test_the_topology_carries_what_was_measured():
    topology = calibration().topology()
    check(topology)
    assert seconds(curves(topology), "all_reduce", 1024, 2) == pytest.approx(10e-6 + 1024 / 1e9)


def test_the_links_come_close_to_what_was_measured():
    names = ("a",) * 4
    steps, latency, bandwidth = 6, 5e-6, 2e9
    rows = [
        Measurement("all_reduce", 4, size, steps * (latency + size / 4 / bandwidth)) for size in (4, 1 << 16, 1 << 24)
    ]
    edge = calibration(names, rows).topology().edges["gpu0", "switch"]
    assert edge["bandwidth"] == pytest.approx(bandwidth, rel=0.01)
    assert 2 * edge["latency"] == pytest.approx(latency, rel=0.01)


def test_several_hosts_have_a_link_each():
    topology = calibration(("a", "a", "b", "b")).topology()
    check(topology)
    assert [len(members) for members in hosts(topology).values()] == [2, 2]
    assert len(ranks(topology)) == 4
    assert topology.has_edge("a/nic", "switch")


def test_a_held_back_size_is_predicted_by_the_others():
    (trial,) = calibration().trials()
    assert trial.predicted == pytest.approx(seconds(curves(calibration().topology()), "all_reduce", 1536, 2))
    assert trial.error == pytest.approx(trial.predicted / 11e-6 - 1)


def test_the_estimator_goes_by_what_was_measured():
    topology = calibration().topology()
    found = simcoll.estimate("all_reduce", 1024, topology)
    assert found.algorithm == "measured"
    assert found.seconds == pytest.approx(10e-6 + 1024 / 1e9)
    assert found.bus_bandwidth == pytest.approx(1024 / found.seconds)
    bare = simcoll.estimate("all_reduce", 1024, topology, calibrated=False)
    assert (bare.algorithm, bare.calibrated) != ("measured", True)


def test_what_was_not_measured_goes_by_the_links():
    found = simcoll.estimate("gather", 1 << 20, calibration().topology())
    assert (found.calibrated, found.seconds > 0) == (False, True)


def test_the_file_gives_the_measurements_back(tmp_path):
    simcoll.write_topology(tmp_path / "here.json", calibration().topology())
    again = simcoll.read_topology(tmp_path / "here.json")
    assert simcoll.estimate("all_reduce", 2048, again) == simcoll.estimate("all_reduce", 2048, calibration().topology())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ["--standalone"]),
        (["--nproc-per-node=4"], ["--standalone", "--nproc-per-node=4"]),
        (["--nproc_per_node", "4"], ["--standalone", "--nproc_per_node", "4"]),
        (["--nnodes=2", "--nproc-per-node=4"], ["--nnodes=2", "--nproc-per-node=4"]),
    ],
)
def test_torchruns_options_pass_through(given, expected, tmp_path):
    command = launch_command(given, tmp_path / "x.json", "gloo", ["all_reduce"], 1024)
    assert command[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert command[3 : 3 + len(expected)] == expected
    assert command[-6:] == [
        "-m",
        "simcoll.estimator.calibration_rank",
        str(tmp_path / "x.json"),
        "gloo",
        "all_reduce",
        "1024",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "simcoll.measured/9"}',
        '{"schema": "simcoll.measured/1"}',
        '{"schema": "simcoll.measured/1", "backend": "gloo", "device": "cpu", "hosts": 2, "measured": []}',
    ],
)
def test_a_torn_result_is_refused(text, tmp_path):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(TopologyError, match="simcoll calibrate"):
        read_file(tmp_path / "m.json")


@pytest.mark.slow
@pytest.mark.gloo
def test_real_ranks_are_measured(tmp_path, capfd):
    pytest.importorskip("torch")
    from simcoll.cli import main

    out = tmp_path / "here.json"
    options = ["--ops", "all_reduce,broadcast", "--max-bytes", "64KiB", "--json", "--nproc-per-node=2"]
    assert main(["calibrate", "--out", str(out), *options]) == 0
    document = json.loads(capfd.readouterr().out)
    assert {(row["op"], row["bytes"]) for row in document["measured"]} >= {("all_reduce", 1024), ("broadcast", 65536)}
    assert all(row["seconds"] > 0 and row["predicted"] > 0 for row in document["held_back"])
    assert read({**document, "schema": "simcoll.measured/1"}).held_back
    assert json.loads(out.read_text())["attributes"]["measured"] == document["measured"]


@pytest.mark.slow
@pytest.mark.gloo
def test_one_rank_is_too_few(tmp_path, capfd):
    pytest.importorskip("torch")
    from simcoll.cli import main

    options = ["--ops", "all_reduce", "--max-bytes", "1KiB", "--nproc-per-node=1"]
    assert main(["calibrate", "--out", str(tmp_path / "x.json"), *options]) == 2
    assert "give --nproc-per-node 2" in capfd.readouterr().err
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(("out", "why"), [("none/x.json", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_written_is_refused_before_measuring(out, why, tmp_path, capfd):
    pytest.importorskip("torch")
    from simcoll.cli import main

    assert main(["calibrate", "--out", str(tmp_path / out), "--nproc-per-node=nosuch"]) == 2
    assert capfd.readouterr().err == f"simcoll: cannot write {tmp_path / out}: {why}; choose another file\n"


def test_without_torch_nothing_is_started(tmp_path, monkeypatch, capfd):
    from simcoll.cli import main

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["calibrate", "--out", str(tmp_path / "x.json")]) == 1
    assert "torch is not installed: install torch 2.11 or newer" in capfd.readouterr().err


@pytest.mark.slow
def test_ranks_that_cannot_start_are_said(tmp_path, capfd):
    pytest.importorskip("torch")
    from simcoll.cli import main

    assert main(["calibrate", "--out", str(tmp_path / "x.json"), "--nproc-per-node=nosuch"]) == 1
    assert "exit code" in capfd.readouterr().err
    assert not (tmp_path / "x.json").exists()
