"""The price of a whole job: recorded or simulated calls are replayed in virtual time on a topology.

The price of one collective comes from ``simcoll.estimator``. How a priced job is shown lives in ``views``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simcoll.public_paths import lazy_names

if TYPE_CHECKING:
    from simcoll.pricing.price import Pricing

__all__ = ["Pricing"]

__getattr__ = lazy_names(
    __name__,
    {
        "Pricing": "simcoll.pricing.price",
    },
)
