"""The limit of what the steps of a conversion may cost."""

from __future__ import annotations

import math
from collections.abc import Iterable

from qconvert.errors import LossError, OptionError, format_count
from qconvert.plugins import Change, Cost

__all__ = ["LIMIT", "refuse_losses"]

#: Decibels of signal to noise below which a step stops a conversion, and below which an output is not equal in a check; 8 bits used in full
#: give about 50.
LIMIT = 30.0
_LISTED = 8


def refuse_losses(changes: Iterable[Change], limit: float = LIMIT) -> None:
    """Refuse a conversion of which a step leaves a tensor below a ratio of signal to noise.

    Args:
        changes: what the passes changed.
        limit: in decibels.

    Raises:
        LossError: there are such tensors.
    """
    if math.isnan(limit):
        raise OptionError("min_tensor_sqnr is not a number", remedy="Give decibels, such as 30.", rule="not-a-number")
    below = [(change.by, cost) for change in changes for cost in change.costs if _is_below(cost, limit)]
    if not below:
        return
    below.sort(key=lambda item: item[1].sqnr_db or 0.0)
    lines = [f"- {name}: {cost}" for name, cost in below[:_LISTED]]
    lines += [f"and {len(below) - _LISTED} more"] if len(below) > _LISTED else []
    worst = below[0][1].sqnr_db or 0.0
    raise LossError(
        f"the conversion leaves {format_count(len(below), 'tensor')} below {limit:g} dB:\n" + "\n".join(lines),
        remedy=f"Use another target or other passes, or allow the loss with --min-tensor-sqnr {int(worst // 1)}.",
        rule="sqnr-below-limit",
    )


def _is_below(cost: Cost, limit: float) -> bool:
    return cost.sqnr_db is not None and cost.sqnr_db < limit
