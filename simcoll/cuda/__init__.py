"""CUDA's streams, events and graphs as the wrapper needs them: the times of device calls, and the order of launches.

This package never waits for a device. ``simcoll.proof`` compares calls between ranks.

Devices are known as a small protocol, which :mod:`simcoll.cuda.events` and the test double implement. An entry whose
device reports the end has it in ``timed`` and is not finished by the host. ``docs/times.md`` explains the times.

In ``detail`` mode one sum for each group proves all calls that a CUDA graph launches there. If it is not zero, the
ranks compare the numbers of calls that they launch, and prove as many as all have in common one by one; groups are
proved beside each other, since ranks may have captured them in different orders. A call that still waits for its proof
is launched before a capture begins. NCCL requires that all ranks capture an operation, or none, and launch the same
graphs; ranks that replay where others call are still compared call by call. In ``detail`` mode such a mixture waits for
ever where the host waits for one call of a graph before it makes the next, because a graph is launched when all its
calls are proved. A capture begun by anything but ``torch.cuda.CUDAGraph`` is not seen, nor are replays of calls
captured before simcoll was enabled, or by a group that has ended.
"""
