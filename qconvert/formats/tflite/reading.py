"""What an operator's read function sees: its inputs, outputs and options, and ways to add canonical operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qconvert.formats.reading.draft import Draft
from qconvert.formats.reading.operator import OperatorReading
from qconvert.graph import Array, Attribute, Op, Quantization, Shape, Tensor
from qconvert.graph.kinds import KINDS

__all__ = ["ReadFunction", "Reading"]

#: ActivationFunctionType of the TFLite schema.
_ACTIVATIONS = {0: "", 1: "relu", 2: "relu_n1_to_1", 3: "relu6"}


class Reading(OperatorReading):
    """One TFLite operator that is being read.

    Attributes:
        name: the builtin operator's name, or that of the custom operator.
        source: name and position, such as "CONV_2D #12".
        inputs: names of its input tensors; "" for an absent one.
        outputs: names of its output tensors.
        version: of the operator, from the file.
        custom_options: the bytes that a custom operator carries.
    """

    def __init__(
        self,
        draft: Draft,
        name: str,
        index: int,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        options: Any,
        version: int = 1,
        custom_options: bytes = b"",
    ) -> None:
        super().__init__(draft, name, f"{name} #{index}", inputs, outputs)
        self._options = options
        self.name = name
        self.version = version
        self.custom_options = custom_options

    def option(self, name: str, default: Any = 0) -> Any:
        """A field of the operator's option table, such as "strideH"; `default` if the file has no table."""
        if self._options is None:
            return default
        try:
            return getattr(self._options, name)
        except AttributeError:
            raise self.invalid(f"its options are {self._options.kind}, which do not belong to it") from None

    def activation(self) -> str:
        """The fused activation as the canonical `activation` attribute."""
        code = self.option("fusedActivationFunction")
        if code not in _ACTIVATIONS:
            raise self.unsupported(f"fused activation number {code}")
        return _ACTIVATIONS[code]

    def result(self, index: int = 0) -> Tensor:
        """The canonical tensor of output `index`."""
        if index >= len(self.outputs):
            raise self.invalid(f"output {index} is absent")
        return self._draft.tensors[self.outputs[index]]

    def rank(self, index: int = 0) -> int:
        """The rank of input `index`; raises UnsupportedError if the file does not say it."""
        rank = self.tensor(index).rank
        if rank is None:
            raise self.unsupported(f"input {self.inputs[index]!r} of unknown rank")
        return rank

    def static_shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of input `index` in numbers; raises UnsupportedError if a size is known only at run time."""
        shape = self.tensor(index).static_shape
        if shape is None:
            raise self.unsupported(f"input {self.inputs[index]!r} of a size known only at run time")
        return shape

    def constant(self, index: int) -> Array | None:
        """The data of input `index` if it is a constant, else None."""
        return self.tensor(index).data if self.has(index) else None

    def ints(self, index: int) -> list[int]:
        """The integers of constant input `index`, flat; raises UnsupportedError if it is computed at run time."""
        data = self.constant(index)
        if data is None:
            raise self.unsupported(f"input {self.inputs[index]!r} that is computed at run time")
        if data.dtype.kind not in "iu":
            raise self.invalid(f"input {self.inputs[index]!r} is {data.dtype}, not integers")
        return [int(value) for value in np.asarray(data).reshape(-1)]

    def int64(self, index: int) -> str:
        """Input `index` as a tensor of int64, as ONNX wants shapes, axes and indices: a constant, or a Cast."""
        tensor = self.tensor(index)
        if tensor.dtype == "int64":
            return tensor.name
        if "int" not in tensor.dtype:
            raise self.invalid(f"input {tensor.name!r} is {tensor.dtype}, not integers")
        if tensor.data is not None:
            return self._draft.variant(tensor.name, "int64", np.asarray(tensor.data).astype(np.int64), None)
        name = self.intermediate("int64", "int64", tensor.shape, base=tensor.name)
        return self.emit("Cast", [tensor.name], [name], to="int64")[0]

    def const(self, data: Any, hint: str = "constant", quantization: Quantization | None = None) -> str:
        """Adds a constant named after the first output and `hint`; returns its name."""
        array = np.asarray(data)
        return self._draft.add(f"{self.outputs[0]}/{hint}", array.dtype.name, array.shape, array, quantization)

    def shape_const(self, values: Sequence[int], hint: str) -> str:
        """Adds a one-dimensional int64 constant: a shape, axes, pads …"""
        return self.const(np.array(values, np.int64), hint)

    def intermediate(self, hint: str, dtype: str, shape: Shape | None, quantization: Quantization | None = None, base: str = "") -> str:
        """Adds a tensor between two canonical operators that one TFLite operator becomes; returns its name."""
        return self._draft.add(f"{base or self.outputs[0]}/{hint}", dtype, shape, None, quantization)

    def like(self, hint: str, tensor: Tensor, shape: Shape | None) -> str:
        """Adds an intermediate tensor of the dtype and quantization of `tensor`, of another shape."""
        return self.intermediate(hint, tensor.dtype, shape, tensor.quantization)

    def emit(
        self, kind: str, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None, **attributes: Attribute
    ) -> list[str]:
        """Appends a canonical operator; inputs and outputs are this operator's unless given. Returns the outputs' names.

        Where a kernel only moves integers although its two sides have different quantizations, the move is kept and a
        Reinterpret puts the other label on the same integers, which is what TFLite's kernels compute.
        """
        ins = tuple(self.inputs if inputs is None else inputs)
        outs = list(self.outputs if outputs is None else outputs)
        relabelled: list[tuple[str, str]] = []
        if KINDS[kind].rule == "move" and ins:
            source = self._draft.tensors[ins[0]]
            for position, name in enumerate(outs):
                tensor = self._draft.tensors[name]
                one_scale = source.quantization is None or source.quantization.is_per_tensor
                if tensor.dtype == source.dtype and one_scale and tensor.quantization != source.quantization:
                    outs[position] = self._draft.add(f"{name}/moved", tensor.dtype, tensor.shape, None, source.quantization)
                    relabelled.append((outs[position], name))
        self._draft.append(Op(kind, ins, tuple(outs), attributes, self.source))
        for moved, name in relabelled:
            self._draft.append(Op("Reinterpret", (moved,), (name,), {}, self.source))
        return outs


ReadFunction = Callable[[Reading], None]
