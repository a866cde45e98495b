"""Every rule by its code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from simcoll.verifier.findings.rule import Rule
from simcoll.verifier.findings.rules_async import FLIGHT_RULES
from simcoll.verifier.findings.rules_fields import FIELD_RULES
from simcoll.verifier.findings.rules_job import JOB_RULES
from simcoll.verifier.findings.rules_order import ORDER_RULES
from simcoll.verifier.findings.rules_p2p import PAIR_RULES

_ALL = (
    *FIELD_RULES,
    *ORDER_RULES,
    *PAIR_RULES,
    *FLIGHT_RULES,
    *JOB_RULES,
)

RULES: Mapping[str, Rule] = MappingProxyType({rule.code: rule for rule in sorted(_ALL, key=lambda rule: rule.code)})
"""All rules, by code, in the order of the codes."""
