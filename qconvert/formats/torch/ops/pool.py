"""Pooling."""

from __future__ import annotations

from qconvert.formats.torch.reading import Call, Operator
from qconvert.formats.torch.values import Ref

__all__ = ["OPERATORS"]


def read_adaptive_average(c: Call) -> Ref:
    """aten::adaptive_avg_pool2d: to one position, or to a size that divides the data's."""
    sizes = c.integers("output_size")
    if any(size != 1 for size in sizes):
        raise c.unsupported(f"output size {sizes}")
    return c.emit("GlobalAveragePool", [c.name("self")], data_format="channels_first")


OPERATORS = {
    "aten::adaptive_avg_pool2d": Operator("T self, l output_size", read_adaptive_average),
}
