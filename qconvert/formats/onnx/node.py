"""What a node of the file says: its attributes, the inputs with their types and values, and what its outputs are declared to be."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import numpy as np

from qconvert.formats.onnx.signatures import type_reason
from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.operator import OperatorReading
from qconvert.graph import Array, Shape, Tensor

__all__ = ["NodeReading", "NotCoveredError"]


class NotCoveredError(Exception):
    """A node that its read function does not take: the reader carries it through as an Opaque operator."""


class NodeReading(OperatorReading):
    """One ONNX node that is being read.

    Attributes:
        op_type, domain: of the node; domain "" is ai.onnx.
        version: the opset of its domain that the model imports.
        opsets: those of all domains.
        source: type and name, such as "Conv /features/0/Conv".
        inputs: names of its input values; "" for an absent one.
        outputs: names of its output values; "" for an absent one.
    """

    def __init__(
        self,
        draft: Draft,
        node: Any,
        opsets: Mapping[str, int],
        declared: MutableMapping[str, tuple[str, Shape | None]],
    ) -> None:
        inputs = tuple("" if value is None else str(value.name) for value in node.inputs)
        outputs = tuple(str(value.name or "") for value in node.outputs)
        super().__init__(draft, node.op_type, f"{node.op_type} {node.name}".strip(), inputs, outputs)
        self._known = draft.known
        self._node = node
        self._declared = declared
        self.op_type: str = node.op_type
        self.domain: str = node.domain
        self.version = int(opsets.get(node.domain, 1))  # 1 for a domain that the model does not import, which onnxruntime takes
        self.opsets = opsets

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute `name`: a number, text, a tuple of them, an array for a tensor; `default` if the node lacks it.

        Numbers are float32 in a file, and so is the default.
        """
        found = self._node.attributes.get(name)
        if found is None:
            return float(np.float32(default)) if isinstance(default, float) else default
        if found.is_ref():
            raise self.invalid(f"attribute {name!r} refers to a function's attribute outside a function", rule="unbound-attribute")
        value = found.value
        if found.type.name == "TENSOR":
            return value.numpy()
        if isinstance(value, (list, tuple)) or found.type.name in ("INTS", "FLOATS", "STRINGS"):
            return tuple(value)
        return value

    def require_types(self) -> None:
        """Raises InvalidModelError if the operator does not take the types of its inputs, or gives its outputs other ones than declared."""
        inputs = [self._draft.tensors[name].dtype if name else "" for name in self.inputs]
        outputs = [self.declared_dtype(index) if name else "" for index, name in enumerate(self.outputs)]
        if reason := type_reason(self.op_type, self.domain, self.version, inputs, outputs):
            raise self.invalid(reason, rule="operand-types")

    def require_only(self, **defaults: Any) -> None:
        """Raises NotCoveredError if one of the attributes has another value than the one given here, which is its only covered one."""
        for name, default in defaults.items():
            if self.attribute(name, default) != (float(np.float32(default)) if isinstance(default, float) else default):
                raise NotCoveredError(f"{name} {self.attribute(name)}")

    def is_used(self, index: int) -> bool:
        """Whether some node or the graph itself reads output `index`."""
        if index >= len(self.outputs) or not self.outputs[index]:
            return False
        value = self._node.outputs[index]
        return bool(value.uses()) or bool(value.is_graph_output())

    def assume(self, index: int, dtype: str) -> None:
        """Says what type input `index` has, if neither the file nor its shape inference does."""
        tensor = self.tensor(index)
        if tensor.dtype == "unknown":
            self._draft.tensors[tensor.name] = replace(tensor, dtype=dtype)

    def rank(self, index: int = 0) -> int:
        """The rank of input `index`; raises NotCoveredError if it is not known."""
        rank = self.tensor(index).rank
        if rank is None:
            raise NotCoveredError(f"input {self.inputs[index]!r} of unknown rank")
        return rank

    def constant(self, index: int) -> Array | None:
        """The data of input `index` if they are known before the model runs, else None."""
        return self._known.get(self.inputs[index]) if self.has(index) else None

    def ints(self, index: int) -> tuple[int, ...]:
        """The integers of input `index`, flat; raises NotCoveredError if they are computed at run time."""
        name, data = self.input(index), self.constant(index)
        if data is None:
            raise NotCoveredError(f"input {name!r} that is computed at run time")
        if data.dtype.kind not in "iu":
            raise self.invalid(f"input {name!r} is {data.dtype}, not integers", rule="not-integers")
        return tuple(int(value) for value in data.reshape(-1))

    def keeps_sizes(self, index: int, count: int) -> bool:
        """Whether the first `count` elements of the list in input `index` are sure to be the first sizes of the data."""
        sizes, shape = self._known.sizes, self.tensor(0).shape
        forms = sizes.get(self.input(index))
        wanted = None if shape is None else [sizes.size(size) for size in shape[:count]]
        return wanted is not None and forms is not None and shape is not None and len(forms) == len(shape) and list(forms[:count]) == wanted

    def declared_dtype(self, index: int = 0) -> str:
        """The type of output `index` as the file or its shape inference says it; "unknown" if neither does."""
        return self._declared.get(self.outputs[index], ("unknown", None))[0]

    def declare(self, name: str, dtype: str, shape: Shape | None) -> None:
        """Says what an output is, of which the file and its shape inference say nothing."""
        if self._declared.get(name, ("unknown", None))[0] == "unknown":
            self._declared[name] = (dtype, shape)

    def after_dequantize(self, index: int) -> Tensor | None:
        """The quantized tensor whose float values input `index` is, with its data if they are known; None if there is none."""
        op = self._draft.producers.get(self.input(index))
        if op is None or op.kind != "Dequantize":
            return None
        tensor = self._draft.tensors[op.inputs[0]]
        return replace(tensor, data=self._known.get(tensor.name))
