"""JSON with line breaks, for people and programs: the text of ``json.dumps(document, indent=2)``.

That one is written in Python, a generator within a generator, and takes most of a report on thousands of ranks.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import Final

_CONSTANTS: Final = {id(value): json.dumps(value) for value in (None, True, False)}


def json_text(document: object) -> str:
    """JSON values as text, indented by two blanks; raises TypeError for any other value, and for keys but texts."""
    return _text(document, "\n")


def _text(value: object, margin: str) -> str:
    """``margin`` is the line break before the value's line, with its blanks."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if type(value) is int:
        return int.__repr__(value)
    if isinstance(value, dict):
        inner = margin + "  "
        lines = [f"{encode_basestring_ascii(name)}: {_text(one, inner)}" for name, one in value.items()]
        return f"{{{inner}{f',{inner}'.join(lines)}{margin}}}" if lines else "{}"
    if isinstance(value, list | tuple):
        inner = margin + "  "
        return f"[{inner}{f',{inner}'.join([_text(one, inner) for one in value])}{margin}]" if value else "[]"
    return _CONSTANTS.get(id(value)) or json.dumps(value)
