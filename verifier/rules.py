"""Every rule by its code. A rule stands beside its logic, or with others of its kind where several modules use it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simcoll.verifier.flows import SPLIT_MISMATCH
from simcoll.verifier.rule import Rule
from simcoll.verifier.rules_fields import (
    COALESCED_MISMATCH,
    DEVICE_MISMATCH,
    DTYPE_MISMATCH,
    OP_MISMATCH,
    REDUCE_OP_MISMATCH,
    ROOT_MISMATCH,
    SIZE_MISMATCH,
)
from simcoll.verifier.rules_flight import FLIGHT_RULES
from simcoll.verifier.rules_job import JOB_RULES
from simcoll.verifier.rules_order import ORDER_RULES
from simcoll.verifier.rules_pairs import PAIR_RULES
from simcoll.verifier.shapes import LAYOUT_MISMATCH, SHAPE_MISMATCH

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.code: rule
        for rule in (
            OP_MISMATCH,
            SIZE_MISMATCH,
            DTYPE_MISMATCH,
            REDUCE_OP_MISMATCH,
            ROOT_MISMATCH,
            SPLIT_MISMATCH,
            DEVICE_MISMATCH,
            LAYOUT_MISMATCH,
            SHAPE_MISMATCH,
            COALESCED_MISMATCH,
            *ORDER_RULES,
            *PAIR_RULES,
            *FLIGHT_RULES,
            *JOB_RULES,
        )
    }
)
"""All rules, by code, in the order of the codes."""
