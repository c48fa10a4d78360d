"""Small ONNX networks with Quantize and Dequantize operators, for tests of what TensorRT takes.

    net = Network()
    x = net.pair(net.input("x", (1, 8, 8, 8)))
    model = net.model(net.conv(x))

The operator whose kernel is asked for is called "target".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

#: The zero point that TensorRT wants.
INT8 = np.zeros((), np.int8)
_RNG = np.random.default_rng(0)


class Network:
    """An ONNX model that grows by operators; every method returns the name of what its operator computes."""

    def __init__(self, opset: int = 21) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def input(self, name: str = "x", shape: Sequence[int | str] = (1, 8, 8, 8), dtype: str = "FLOAT") -> str:
        from onnx import TensorProto, helper

        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.DataType.Value(dtype), list(shape)))
        return name

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """An initializer of numpy's type, or of one that only ONNX names ("INT4" …)."""
        from onnx import TensorProto, helper, numpy_helper

        name = f"c{len(self.constants)}"
        if dtype.isupper():
            array = np.asarray(value)
            made = helper.make_tensor(name, TensorProto.DataType.Value(dtype), array.shape, array.reshape(-1).tolist())
        else:
            made = numpy_helper.from_array(np.asarray(value, dtype), name)
        self.constants.append(made)
        return name

    def op(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> str:
        """An operator; of several results the first is returned, and the others are called the same with 1, 2 … after it."""
        from onnx import helper

        result = f"t{len(self.nodes)}"
        names = [result, *(f"{result}{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=name or f"{kind}_{len(self.nodes)}", **attributes))
        return result

    def quantize(self, x: str, scale: Any = 0.05, zero: Any = INT8, **attributes: Any) -> str:
        return self._converted("QuantizeLinear", x, scale, zero, attributes)

    def dequantize(self, x: str, scale: Any = 0.05, zero: Any = INT8, **attributes: Any) -> str:
        return self._converted("DequantizeLinear", x, scale, zero, attributes)

    def pair(self, x: str, scale: Any = 0.05, zero: Any = INT8, **attributes: Any) -> str:
        """Quantize and Dequantize."""
        return self.dequantize(self.quantize(x, scale, zero, **attributes), scale, zero, **attributes)

    def _converted(self, kind: str, x: str, scale: Any, zero: Any, attributes: dict[str, Any]) -> str:
        """`scale` and `zero` are values, names of tensors, or None for no zero point."""
        given = [scale if isinstance(scale, str) else self.constant(scale, getattr(scale, "dtype", np.dtype("float32")).name)]
        if zero is not None:
            given.append(zero if isinstance(zero, str) else self.constant(zero, zero.dtype.name))
        return self.op(kind, x, *given, **attributes)

    def weights(
        self, shape: Sequence[int] = (8, 8, 3, 3), scale: Any = None, zero: Any = None, axis: int | None = 0, dtype: str = "int8"
    ) -> str:
        """Integers after a Dequantize: by default one scale for each index of the first axis."""
        integers = self.constant(_RNG.integers(-127, 128, shape), "int8") if dtype == "int8" else self.constant(_small(shape), dtype)
        scale = np.full(shape[0], 0.01, np.float32) if scale is None else np.asarray(scale, np.float32)
        zero = np.zeros(scale.shape, np.int8) if zero is None else zero
        return self.dequantize(integers, scale, zero, **({} if axis is None else {"axis": axis}))

    def conv(self, x: str, weights: str = "", bias: str = "", name: str = "target", **attributes: Any) -> str:
        """A Conv with 8 channels, 3 x 3, quantized weights by default."""
        attributes = {"pads": [1, 1, 1, 1], **attributes} if "auto_pad" not in attributes else attributes
        return self.op("Conv", x, weights or self.weights(), *([bias] if bias else []), name=name, **attributes)

    def model(self, *outputs: str, dtype: str = "FLOAT") -> Any:
        """The ModelProto; shapes of outputs are left open."""
        from onnx import TensorProto, helper

        kind = TensorProto.DataType.Value(dtype)
        results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, results, self.constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _small(shape: Sequence[int]) -> Any:
    return _RNG.integers(0, 7, shape)
