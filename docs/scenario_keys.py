"""Writes the list of a scenario file's keys anew from the parser's: ``python docs/scenario_keys.py``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from simcoll.simulation.keys import KEYS, KINDS, ScenarioKey
from simcoll.simulation.operations import ACTIONS, VERBS, keys_of

PAGE = Path(__file__).with_name("scenario-keys.md")


def page() -> str:
    """The page: a table for each table of the file, then the ops and the kinds of faults."""
    parts = [
        "# Keys of a scenario file\n\nWritten by `make pages` from what the parser knows; [scenarios](scenarios.md) "
        "explains them. Keys in bold are needed.\n"
    ]
    parts += [f"## {_title(table)}\n\n{_table(keys)}" for table, keys in KEYS.items()]
    parts.append(f"## Ops\n\n{_ops()}")
    parts.append(f"## Kinds of faults\n\n{_kinds()}")
    return "\n".join(parts)


def _title(table: str) -> str:
    if not table:
        return "The file"
    return f"`[{table}]`" if table in ("topology", "expect") else f"`[[{table}]]`"


def _table(keys: Iterable[ScenarioKey]) -> str:
    rows = [
        f"| {f'**`{key.name}`**' if key.needed else f'`{key.name}`'} | {key.form} | {key.meaning} |" for key in keys
    ]
    return "\n".join(["| key | value | meaning |", "|---|---|---|", *rows, ""])


def _ops() -> str:
    rows = [f"| `{name}` | `torch.distributed.{name}` | {_takes(name)} |" for name in VERBS]
    rows += [f"| `{name}` | {meaning} | {_takes(name)} |" for name, meaning in ACTIONS.items()]
    return "\n".join(["| op | what it is | keys that it takes |", "|---|---|---|", *rows, ""])


def _takes(op: str) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys_of(op) - {"op"}))


def _kinds() -> str:
    rows = [
        f"| `{kind}` | {meaning} | {', '.join(f'`{key}`' for key in sorted(keys))} |"
        for kind, (keys, meaning) in KINDS.items()
    ]
    return "\n".join(["| kind | what it does | keys of its own |", "|---|---|---|", *rows, ""])


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
