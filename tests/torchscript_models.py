"""TorchScript archives made by hand: code as text and pickles opcode by opcode, so that tests need no torch, which loads them too."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.rounding import dequantize
from qconvert.conversion.loading import load
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph

_STORAGES = {
    "float32": "FloatStorage", "float64": "DoubleStorage", "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage",
    "uint8": "ByteStorage", "int8": "CharStorage", "bool": "BoolStorage", "float16": "HalfStorage",
    "qint8": "QInt8Storage", "quint8": "QUInt8Storage",
    "qint32": "QInt32Storage", "quint4x2": "QUInt4x2Storage",
}  # fmt: skip


@dataclass(frozen=True)
class Quantized:
    """A quantized tensor: stored integers with one scale and zero point, or with one for each index along an axis."""

    data: Any
    scale: Any
    zero_point: Any = 0
    axis: int | None = None
    dtype: str = ""
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Instance:
    """An object of a class, with its attributes or with the state that it packs itself into."""

    kind: str
    state: Any = field(default_factory=dict)


@dataclass(frozen=True)
class Typed:
    """A list or dictionary with its type, without which PyTorch takes no empty list, and none of a class of its own."""

    value: Any
    kind: str


def packed_conv(
    weight: Quantized, bias: Any, stride: Any = (1, 1), padding: Any = (0, 0), dilation: Any = (1, 1), groups: int = 1
) -> Instance:
    """Packed parameters of a convolution in the form of today."""
    rank = len(stride)
    sizes = np.array([rank, *stride, *padding, *dilation, *([0] * rank), groups, 0], np.int16)
    return Instance(f"__torch__.torch.classes.quantized.Conv{rank}dPackedParamsBase", ("2", [sizes, weight], [bias]))


def packed_linear(weight: Quantized, bias: Any) -> Instance:
    """Packed parameters of a linear layer."""
    return Instance("__torch__.torch.classes.quantized.LinearPackedParamsBase", (weight, bias))


class _Pickle:
    """A pickle with its storages."""

    def __init__(self) -> None:
        self.storages: list[bytes] = []

    def whole(self, value: Any) -> bytes:
        return b"\x80\x02" + self._of(value) + b"."

    def _name(self, name: str) -> bytes:
        module, _, short = name.rpartition(".")
        return f"c{module}\n{short}\n".encode()

    def _of(self, value: Any) -> bytes:
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if isinstance(value, int):
            if -(2**31) <= value < 2**31:
                return b"J" + struct.pack("<i", value)
            return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, str):
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        if isinstance(value, (list, tuple)):
            if not value:
                return b"]" if isinstance(value, list) else b")"
            items = b"(" + b"".join(map(self._of, value))
            return b"]" + items + b"e" if isinstance(value, list) else items + b"t"
        if isinstance(value, dict):
            return b"}(" + b"".join(self._of(key) + self._of(item) for key, item in value.items()) + b"u" if value else b"}"
        if isinstance(value, Instance):
            return self._name(value.kind) + b")\x81" + self._of(value.state) + b"b"
        if isinstance(value, Typed):
            return self._name("torch.jit._pickle.restore_type_tag") + self._of((value.value, value.kind)) + b"R"
        if isinstance(value, Quantized):
            return self._quantized(value)
        return self._tensor(np.asarray(value))

    def _placed(self, data: Array, dtype: str, shape: tuple[int, ...]) -> bytes:
        self.storages.append(np.ascontiguousarray(data).tobytes())
        key = str(len(self.storages) - 1)
        strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
        storage = b"(" + self._of("storage") + self._name(f"torch.{_STORAGES[dtype]}") + self._of(key) + self._of("cpu")
        return b"(" + storage + self._of(int(data.size)) + b"tQ" + self._of(0) + self._of(shape) + self._of(strides)

    def _tensor(self, data: Array) -> bytes:
        return self._name("torch._utils._rebuild_tensor_v2") + self._placed(data, data.dtype.name, data.shape) + b"\x89}tR"

    def _quantized(self, value: Quantized) -> bytes:
        data = np.asarray(value.data)
        dtype = value.dtype or {"int8": "qint8", "uint8": "quint8", "int32": "qint32"}[data.dtype.name]
        if value.axis is None:
            scheme = b"(" + self._name("torch.per_tensor_affine") + self._of(float(value.scale)) + self._of(int(value.zero_point)) + b"t"
        else:
            real = np.asarray(value.zero_point).dtype.kind == "f"
            scales = np.asarray(value.scale, np.float32 if real else np.float64)
            zero_points = np.broadcast_to(np.asarray(value.zero_point, np.float32 if real else np.int64), scales.shape)
            name = "torch.per_channel_affine_float_qparams" if real else "torch.per_channel_affine"
            scheme = b"(" + self._name(name) + self._tensor(scales) + self._tensor(np.array(zero_points)) + self._of(value.axis) + b"t"
        return self._name("torch._utils._rebuild_qtensor") + self._placed(data, dtype, value.shape or data.shape) + scheme + b"\x89}tR"


def archive(
    path: Path,
    code: str | Mapping[str, str],
    attributes: Any = None,
    constants: Sequence[Any] = (),
    traced: Sequence[tuple[str, tuple[int, ...]]] | None = None,
    constant_names: str = "{}",
) -> Path:
    """Writes a TorchScript archive.

    Args:
        path: of the file.
        code: statements of `forward` after its head, or the text of each file of the code by its name.
        attributes: of the model; an Instance for a class other than __torch__.Net.
        constants: what the code calls CONSTANTS.c0 and so on.
        traced: types and shapes of the inputs of a trace, which are written without values as PyTorch does.
        constant_names: how the storages of constants are called.
    """
    files = dict(code) if not isinstance(code, str) else {"__torch__.py": code}
    pickles = {
        "data": attributes if isinstance(attributes, Instance) else Instance("__torch__.Net", attributes or {}),
        "constants": tuple(constants),
    }
    if traced is not None:
        pickles["traced_inputs"] = {"forward": [np.zeros(shape, dtype) for dtype, shape in traced]}
    with zipfile.ZipFile(path, "w") as found:
        found.writestr("net/version", "3\n")
        for name, text in files.items():
            found.writestr(f"net/code/{name}", text)
        for folder, value in pickles.items():
            pickle = _Pickle()
            found.writestr(f"net/{folder}.pkl", pickle.whole(value))
            for index, storage in enumerate(pickle.storages):
                name = constant_names.format(index) if folder == "constants" else str(index)
                found.writestr(f"net/{folder}/{name}", b"" if folder == "traced_inputs" else storage)
    return path


def net(body: str, arguments: str = "x: Tensor") -> str:
    """The code of a model whose `forward` has this body, with its lines separated by ";" or line breaks."""
    lines = [line.strip() for line in body.replace(";", "\n").splitlines() if line.strip()]
    return "\n".join(
        ["class Net(Module):", f"  def forward(self: __torch__.Net, {arguments}) -> Tensor:", *(f"    {line}" for line in lines), ""]
    )


def graph_of(path: Path, input_shape: str = "") -> Graph:
    """The canonical graph of a file, in its normal form."""
    return load(path, input_shape=input_shape)


def values_of(graph: Graph, *inputs: Any) -> list[Array]:
    """The outputs of a graph as float values, or as the integers that they are where they have no quantization."""
    found = evaluate(graph, dict(zip(graph.inputs, map(np.asarray, inputs), strict=True)))
    return [
        found[name] if (quantization := graph[name].quantization) is None else dequantize(found[name], quantization)
        for name in graph.outputs
    ]


def computed(path: Path, body: str, *inputs: Any, attributes: Mapping[str, Any] | None = None) -> list[Array]:
    """What a model whose `forward` has this body gives for inputs called x, y, z."""
    values = [np.asarray(value) for value in inputs]
    arguments = ", ".join(f"{name}: Tensor" for name in "xyzw"[: len(values)])
    traced = [(value.dtype.name, value.shape) for value in values]
    file = archive(path, net(body, arguments), attributes, traced=traced)
    return values_of(graph_of(file), *values)
