"""One operator of a TFLite file that is being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qconvert.graph import Op

__all__ = ["Operator"]


class Operator:
    """One TFLite operator that will be written.

    Attributes:
        builtin: its name in the schema, such as "CONV_2D"; the name of a custom operator if `custom` is set.
        inputs, outputs: tensor names; "" for an absent input.
        options: the object of its option table, or None.
        version: of the operator, as its types need it.
        custom: the bytes of a custom operator's options; None for a builtin one.
        origin: the canonical operator that it comes from.
        intermediates: tensors that carry the quantizations of what it computes inside.
    """

    def __init__(
        self,
        builtin: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        options: Any,
        version: int,
        custom: bytes | None,
        origin: Op | None = None,
        intermediates: Sequence[str] = (),
    ) -> None:
        self.builtin = builtin
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.options = options
        self.version = version
        self.custom = custom
        self.origin = origin
        self.intermediates = tuple(intermediates)
