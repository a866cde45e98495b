"""Turns recording on and off in this process.

Activation replaces one name: ``ProcessGroup`` where torch.distributed makes groups. It is lazy: nothing is written
and no thread started before a group makes its first call, so that it may happen before the process that will be a
rank is forked.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    DebugLevel,
    ProcessGroup,
    Store,
    _register_process_group,
    _unregister_process_group,
)
from torch.distributed import distributed_c10d
from torch.nn.parallel import distributed as ddp_module

from simcoll.blackbox.stacks import answer_no_more, answer_signal, withdraw_stacks
from simcoll.core.patches import Patches
from simcoll.core.threads import let_gloo_rest
from simcoll.cuda.graphs import ignore_graphs, watch_graphs
from simcoll.cuda.timing import calls_between_times
from simcoll.cuda.watcher import close_device_times
from simcoll.errors import ConfigurationError
from simcoll.proof.checker import calls_between_rounds
from simcoll.recorder.failures import install_failure_hooks, noting_non_members, remove_failure_hooks
from simcoll.recorder.group_creation import aborting, destroying, initialising, noted, shrinking
from simcoll.recorder.pending_errors import PENDING_ERRORS
from simcoll.recorder.recorder import Recorder
from simcoll.recorder.session import Session, activate, active_session, claim_rank, own_recorders, pipelines
from simcoll.values.choice import values_wanted
from simcoll.values.scaling import watch_scalers
from simcoll.wrapper.async_checks import flights, noting_synchronization
from simcoll.wrapper.ddp import recorded_verification
from simcoll.wrapper.process_group import RecordedProcessGroup, is_recorded, to_plain, wrap_backend
from simcoll.wrapper.replicas import watch_replicas

_DRAIN_SECONDS = 2.0
"""The time the end of the process waits for calls that the program did not wait for."""

MODES = ("off", "record", "check", "detail")


def enable(mode: str | None = None, out: str | os.PathLike[str] | None = None, *, values: str | None = None) -> None:
    """Record every collective from now on; in ``detail`` mode prove it first, in ``check`` mode in the background.

    Groups that torch.distributed knows already are included, but a group object that the program holds from before
    stays as it is: calls on an earlier result of ``dist.new_group`` go unrecorded. The default group has no such limit
    where it is named by ``group=None``.

    ``mode`` is ``record``, ``check``, ``detail`` or ``off`` (default: the environment's SIMCOLL_MODE, else ``detail``);
    ``out`` is the folder of the black boxes (default: ``SIMCOLL_OUT``, else a folder under ``simcoll-out``). ``values``
    selects the calls whose values are checked: ``off``, ``sample`` or ``all`` (default: ``SIMCOLL_VALUES``, else
    ``off``). Raises :class:`~simcoll.errors.ConfigurationError` on an unknown mode or ``values``, or a
    SIMCOLL_CHECK_EVERY, SIMCOLL_TIMES_EVERY or SIMCOLL_VALUES_BUDGET that is no number.
    """
    mode = mode or os.environ.get("SIMCOLL_MODE") or "detail"
    if mode not in MODES:
        raise ConfigurationError(f"unknown mode {mode!r}: expected one of {', '.join(MODES)} (SIMCOLL_MODE)")
    if mode == "off":
        disable()
        return
    calls_between_times()
    if mode == "check":
        calls_between_rounds()
    session = Session(mode, _folder(out), values_wanted(values))
    current = active_session()
    same = (mode, session.out, session.values)
    if current is not None and (current.mode, current.out, current.values) == same:
        return
    claim_rank()
    answer_signal()
    activate(session)
    _install()
    _adopt_existing()


def disable() -> None:
    """Make no more recorded groups; groups that exist go on working, unrecorded."""
    _drain()
    activate(None)
    _uninstall()


def _folder(out: str | os.PathLike[str] | None) -> Path | None:
    stated = out or os.environ.get("SIMCOLL_OUT")
    return Path(stated).absolute() if stated else None


def wrap_process_group(
    pg: Any, *, store: Store | None = None, timeout: timedelta | float | None = None, mode: str = "detail"
) -> ProcessGroup:
    """Wrap one group explicitly.

    ``pg`` is a ``ProcessGroup`` or a bare backend such as ``ProcessGroupGloo``; ``store`` is where its ranks meet
    (a group's own by default), ``timeout`` how long a proof waits for a rank (the group's own by default).
    """
    if mode not in MODES:
        raise ConfigurationError(f"unknown mode {mode!r}: expected one of {', '.join(MODES)}")
    if mode == "off":
        return pg  # type: ignore[no-any-return]
    limit = timedelta(seconds=timeout) if isinstance(timeout, (int, float)) else timeout
    active = active_session()
    values = active.values if active else values_wanted()
    session = Session(mode, active.out if active else _folder(None), values)
    _wrapped.append(mode)
    watch_graphs()
    _end_with_the_process()
    if type(pg) is RecordedProcessGroup:
        pg = pg.plain
    if isinstance(pg, ProcessGroup):
        return RecordedProcessGroup.adopt(pg, session, store=store, timeout=limit)
    if store is None:
        raise ConfigurationError(f"a bare {type(pg).__name__} has no store of its own: give store=")
    return wrap_backend(pg, session, store=store, timeout=limit)


def _create_process_group_wrapper(
    wrapped_pg: Any,
    store_prefix: str,
    store: Store,
    rank: int,
    world_size: int,
    timeout: timedelta | float = timedelta(minutes=30),
) -> Any:
    """Stands in for c10d's function of this name, which wraps a backend in the group of DETAIL."""
    return wrap_process_group(wrapped_pg, store=dist.PrefixStore(store_prefix, store), timeout=timeout)


def _debug_level() -> DebugLevel:
    """Returns the debug level for c10d's making of groups: never DETAIL, whose wrapper would come in between."""
    level = dist.get_debug_level()
    if level != DebugLevel.DETAIL:
        return level
    _warn_once("TORCH_DISTRIBUTED_DEBUG=DETAIL is set: simcoll takes the place of its process-group wrapper")
    return DebugLevel.INFO


_wrapped: list[str] = []
"""The modes of groups that the program has wrapped by itself, which go on when :func:`disable` was called."""

_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        sys.stderr.write(f"simcoll: {text}\n")


_patches = Patches()
"""The functions that :func:`enable` has replaced."""


@contextmanager
def hooks(inner: Callable[[Any], Any], outer: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the same names in torch as :func:`enable` while the block runs, whether or not simcoll is enabled.

    ``inner`` and ``outer`` go around ``init_process_group``, inside and outside of the replacement made here.
    """
    with ExitStack() as stack:
        if _patches:
            stack.callback(_install)
        _uninstall()
        _replace_initialise(stack.enter_context(Patches()), inner)
        stack.callback(_uninstall)
        _install()
        _replace_initialise(stack.enter_context(Patches()), outer)
        yield


def _replace_initialise(patches: Patches, wrapper: Callable[[Any], Any]) -> None:
    initialise = wrapper(distributed_c10d.init_process_group)
    for module in (distributed_c10d, dist):
        patches.replace(module, "init_process_group", initialise)


def _install() -> None:
    if not _patches:
        _install_always()
    session = active_session()
    if session is not None and session.values != "off":
        watch_replicas(_patches)


def _install_always() -> None:
    _patches.replace(distributed_c10d, "ProcessGroup", RecordedProcessGroup)
    _patches.replace(distributed_c10d, "get_debug_level", _debug_level)
    _patches.wrap(distributed_c10d, "_new_group_with_tag", noted)
    _patches.wrap(distributed_c10d, "_create_shrunk_process_group", shrinking)
    for name in ("HealthCheckHook", "FlightRecorderHook"):
        if (kind := getattr(distributed_c10d, name, None)) is not None:
            _patches.wrap(kind, "attach", lambda attach: staticmethod(to_plain(attach)))
    initialise = initialising(distributed_c10d.init_process_group)
    destroy = destroying(distributed_c10d.destroy_process_group)
    _patches.wrap(distributed_c10d, "_abort_process_group", aborting)
    for module in (distributed_c10d, dist):
        _patches.replace(module, "init_process_group", initialise)
        _patches.replace(module, "destroy_process_group", destroy)
        _patches.replace(module, "_create_process_group_wrapper", _create_process_group_wrapper)
    if (dist2 := _dist2()) is not None:
        _patches.replace(dist2, "ProcessGroup", RecordedProcessGroup)
    _patches.wrap(
        ddp_module, "_verify_param_shape_across_processes", lambda verify: recorded_verification(verify, _recorder_of)
    )
    watch_graphs()
    watch_scalers(_patches)
    for device in (torch.cuda, torch.accelerator):
        _patches.wrap(device, "synchronize", noting_synchronization)
    _patches.replace(distributed_c10d, "_warn_not_in_group", noting_non_members(_recorder))
    install_failure_hooks(active_session)
    _end_with_the_process()


def _recorder() -> Recorder | None:
    session = active_session()
    return None if session is None else session.current_recorder()


def _recorder_of(group: ProcessGroup) -> Recorder | None:
    return _recorder() if is_recorded(group) else None


def _end_with_the_process() -> None:
    """Have :func:`_end` called once, however often this is."""
    atexit.unregister(_end)
    atexit.register(_end)


def _dist2() -> Any:
    """torch.distributed._dist2, which some versions of torch have."""
    try:
        from torch.distributed import _dist2
    except ImportError:
        return None
    return _dist2


def _uninstall() -> None:
    _patches.restore()
    if not _wrapped:
        ignore_graphs()
    remove_failure_hooks()


def _drain() -> None:
    """End every group's work within the time of one."""
    ending = list(pipelines.here)
    for pipeline in ending:
        pipeline.finish()
    deadline = time.monotonic() + _DRAIN_SECONDS
    for pipeline in ending:
        pipeline.close(max(deadline - time.monotonic(), 0))


def _end() -> None:
    """The end of the interpreter, whether or not simcoll is still enabled: a box stays open while it may be again."""
    _drain()
    close_device_times(_DRAIN_SECONDS)
    let_gloo_rest()
    for error in PENDING_ERRORS.rest():
        sys.stderr.write(f"simcoll: found when the program had ended: {error}\n")
    flights.here.look_after(last=True)
    for recorder in own_recorders():
        recorder.event("exit")
        recorder.close()
    answer_no_more()
    withdraw_stacks()


def _adopt_existing() -> None:
    """Put recorded groups in the place of the plain ones that torch.distributed already knows."""
    world = distributed_c10d._world
    plain = [group for group in world.pg_map if type(group) is ProcessGroup]
    twins = {group: RecordedProcessGroup.adopt(group, None) for group in plain}
    default = distributed_c10d.GroupMember.WORLD
    tables: list[Any] = [world.pg_map, world.pg_names, world.pg_group_ranks, world.pg_backend_config, world.pg_to_tag]
    for table in tables:
        for group, twin in twins.items():
            if group in table:
                table[twin] = table.pop(group)
    for groups in world.tags_to_pg.values():
        groups[:] = [twins.get(group, group) for group in groups]
    for twin in twins.values():
        _unregister_process_group(twin.group_name)
        _register_process_group(twin.group_name, twin)
    if default in twins:
        distributed_c10d._update_default_pg(twins[default])
