"""Small .tflite models with dynamic dimensions, an operator a line, and what both runtimes make of them at several sizes.

net = Net(x=(-1, 8, 3))
whole = net.shape("x")
net.output("RESHAPE", ["x", net.op("PACK", [net.at(whole, 0), net.ints(24)], (2,), options={"valuesCount": 2})], (-1, 24))
net.require_equal({"x": (1, 8, 3)}, {"x": (3, 8, 3)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tflite_models import OpSpec, TensorSpec, model

from qconvert import convert
from qconvert.files import map_file
from qconvert.runtimes.litert import LiteRT
from qconvert.runtimes.onnxruntime import OnnxRuntime

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]


class Net:
    """A model that grows operator by operator.

    Args:
        dtype: of the data, int8 and int16 with the scale 1/16.
        inputs: shapes by name, -1 where a size is open.
    """

    def __init__(self, dtype: str = "float32", **inputs: Shape) -> None:
        self._dtype = dtype
        self._tensors: list[TensorSpec] = []
        self._ops: list[OpSpec] = []
        self._inputs = [self.tensor(name, shape) for name, shape in inputs.items()]
        self._outputs: list[str] = []

    def tensor(self, name: str, shape: Shape, dtype: str = "", scale: float = 1 / 16) -> str:
        """Declares a tensor of the data's type, or of plain numbers of another."""
        dtype = dtype or self._dtype
        stored = dtype in ("int8", "int16", "uint8") and dtype == self._dtype
        sizes, signature = tuple(abs(size) for size in shape), shape if -1 in shape else None
        point = 3 if stored and dtype != "int16" else 0
        self._tensors.append(TensorSpec(name, sizes, dtype, scale if stored else None, point, shape_signature=signature))
        return name

    def input(self, name: str, shape: Shape, zero_point: int) -> None:
        """One more input of the model, with a zero point of its own."""
        self._inputs.append(self.tensor(name, shape))
        if self._tensors[-1].scale is not None:
            self._tensors[-1] = replace(self._tensors[-1], zero_point=zero_point)

    def const(self, data: Any, dtype: str = "int32", **more: Any) -> str:
        """A constant."""
        array = np.asarray(data, dtype)
        self._tensors.append(TensorSpec(f"c{len(self._tensors)}", array.shape, dtype, data=array, **more))
        return self._tensors[-1].name

    def ints(self, *values: int) -> str:
        """A list of int32, or one number."""
        return self.const(values[0] if len(values) == 1 else list(values))

    def op(
        self, builtin: str, inputs: Sequence[str | None], shape: Shape, dtype: str = "int32", options: Any = None, scale: float = 1 / 16
    ) -> str:
        """An operator with one output, of int32 unless it says another type; "" is the data's."""
        name = self.tensor(f"t{len(self._tensors)}", shape, dtype, scale)
        self._ops.append(OpSpec(builtin, inputs, [name], options))
        return name

    def shape(self, name: str) -> str:
        """SHAPE."""
        rank = next(len(tensor.shape) for tensor in self._tensors if tensor.name == name)
        return self.op("SHAPE", [name], (rank,), options={"outType": 2})

    def at(self, name: str, index: int) -> str:
        """One element of a list, by STRIDED_SLICE."""
        bounds = [self.const([value]) for value in (index, index + 1, 1)]
        return self.op("STRIDED_SLICE", [name, *bounds], (), options={"shrinkAxisMask": 1})

    def pack(self, *names: str, shape: Shape = ()) -> str:
        """PACK of numbers to a list, or of lists of `shape` to rows."""
        return self.op("PACK", names, (len(names), *shape), options={"valuesCount": len(names), "axis": 0})

    def output(self, *arguments: Any, **more: Any) -> str:
        """op() on the data, whose result the model gives out."""
        self._outputs.append(self.op(*arguments, **{"dtype": "", **more}))
        return self._outputs[-1]

    @property
    def data(self) -> bytes:
        """The file."""
        return model(self._ops, self._tensors, self._inputs, self._outputs)

    def require_equal(self, folder: Path, *sizes: Mapping[str, Shape], within: float = 0.0, back: bool = True) -> Path:
        """LiteRT and onnxruntime give the same for inputs of each of these shapes, and LiteRT for what comes back from ONNX.

        Args:
            folder: for the files.
            sizes: shapes of the inputs by name, for each run.
            within: how far stored integers may be apart; floats may differ by 1e-5 of the largest.
            back: whether the ONNX model is converted to TFLite again.

        Returns:
            The ONNX file.
        """
        source, result, again = (folder / name for name in ("source.tflite", "result.onnx", "again.tflite"))
        source.write_bytes(self.data)
        convert(source, result)
        if back:
            convert(result, again)
        for shapes in sizes:
            rng = np.random.default_rng(sum(map(sum, shapes.values())))
            feed: dict[str, Array] = {name: _random(rng, shape, self._dtype) for name, shape in shapes.items()}
            wanted = LiteRT(map_file(source)).run(feed)
            runs = [OnnxRuntime(result.read_bytes()).run(feed)] + ([LiteRT(map_file(again)).run(feed)] if back else [])
            for found in runs:
                for x, y in zip(wanted.values(), found.values(), strict=True):
                    _require_close(x, y, within)
        return result


def _random(rng: np.random.Generator, shape: Shape, dtype: str) -> Array:
    if dtype == "float32":
        return rng.normal(size=shape).astype(np.float32)
    low, high = {"int8": (-100, 100), "uint8": (0, 255), "int16": (-1000, 1000)}[dtype]
    return rng.integers(low, high, shape).astype(dtype)


def _require_close(x: Array, y: Array, within: float) -> None:
    assert x.shape == y.shape
    if y.dtype == np.uint8 and x.dtype == np.int8:  # stored so by the target
        y = (y.astype(np.int16) - 128).astype(np.int8)
    assert x.dtype == y.dtype
    difference = float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max(initial=0))
    assert difference <= (1e-5 * max(float(np.abs(x).max(initial=0)), 1.0) if x.dtype.kind == "f" else within)
