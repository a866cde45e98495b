"""Lines of kernel logs, as NVIDIA's documents and Linux' sources have them."""

from __future__ import annotations

import pytest

from simcoll.verifier.causes.facts import KernelEventKind
from simcoll.verifier.causes.kernel_log import kernel_events

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1896, name=python, GPU has fallen off the bus."


def test_an_xid_has_its_number_device_and_process() -> None:
    [event] = kernel_events([XID])
    assert (event.kind, event.number, event.device, event.pid) == (KernelEventKind.XID, 79, "0000:3b:00", 1896)
    assert (event.time_ns, event.text) == (0, XID)


@pytest.mark.parametrize(
    ("line", "number", "pid"),
    [
        ("[...] NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, 0),
        ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu", 63, 1896),
        ("NVRM: Xid (PCI:0000:e0:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)", 48, 0),
        ("Nov 24 01:02:03 node kernel: [  966.5] NVRM: Xid (PCI:0000:01:00): 31, Ch 0000000b, intr 10000000", 31, 0),
    ],
)
def test_other_spellings_of_xids(line: str, number: int, pid: int) -> None:
    [event] = kernel_events([line])
    assert (event.number, event.pid) == (number, pid)


@pytest.mark.parametrize(
    ("line", "fatal"),
    [
        ("NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", True),
        ("NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link -1 (0x00000004 0x00000000)", False),
        ("NVRM: Xid (PCI:0009:01:00): 145, RLW_REMAP Non-Fatal XC0 i0 Link -1 (0x00000004 0x00000000)", False),
        ("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up", True),
        ("nvidia-nvswitch4: SXid (PCI:0000:c6:00.0): 19084, Non-fatal, Link 29 AN1 Heartbeat Timeout Error", False),
    ],
)
def test_the_severity_of_links_and_switches(line: str, fatal: bool) -> None:
    [event] = kernel_events([line])
    assert event.fatal is fatal


def test_kills_for_want_of_memory() -> None:
    whole, group = kernel_events(
        [
            "Out of memory: Killed process 1234 (python) total-vm:16420540kB, anon-rss:13951040kB, file-rss:4528kB",
            "Memory cgroup out of memory: Killed process 23793 (leaker) total-vm:2623712kB, anon-rss:506500kB",
        ]
    )
    assert (whole.kind, whole.pid, whole.limited) == (KernelEventKind.OUT_OF_MEMORY, 1234, False)
    assert (group.kind, group.pid, group.limited) == (KernelEventKind.OUT_OF_MEMORY, 23793, True)


def test_errors_of_memory() -> None:
    poison, edac = kernel_events(
        [
            "Memory failure: 0x1a2b3c: Sending SIGBUS to python:4242 due to hardware memory corruption",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0",
        ]
    )
    assert (poison.kind, poison.pid) == (KernelEventKind.MEMORY_ERROR, 4242)
    assert edac.kind is KernelEventKind.MEMORY_ERROR


@pytest.mark.parametrize(
    ("line", "time_ns"),
    [
        (f"3,812,1500000,-;{XID}", 10**18 + 1_500_000_000),
        (f"2025-11-24T01:02:03,250000+00:00 {XID}", 1_763_946_123_250_000_000),
        (f"2025-11-24T03:02:03+0200 node-3 kernel: {XID}", 1_763_946_123_000_000_000),
        (f"[   12.345678] {XID}", 0),
        (f"[Mon Nov 24 01:02:03 2025] {XID}", 0),
        (f"2025-99-99T01:02:03+00:00 {XID}", 0),
    ],
)
def test_the_time_of_a_line(line: str, time_ns: int) -> None:
    [event] = kernel_events([line], booted_ns=10**18)
    assert (event.time_ns, event.number) == (time_ns, 79)


def test_what_is_not_understood_is_passed_over() -> None:
    lines = [
        "",
        "\x00",
        "x" * 100_000,
        "NVRM: Xid (PCI:zz): 79",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "6,1,2,-;usb 1-1: new",
    ]
    assert kernel_events(lines) == []
