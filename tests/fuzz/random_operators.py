"""Files with one operator whose inputs, types, shapes and attributes are drawn at random: well formed, and mostly senseless.

data = random_file("onnx", np.random.default_rng(4711))
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
from tflite_models import _OPTIONS, OpSpec, TensorSpec, model

from fuzz.altering import Rng, one

_SHAPES = (
    (), (0,), (1,), (2,), (4,), (1, 1), (2, 3), (3, 0), (4, 4), (1, 4, 4), (2, 3, 4), (1, 4, 6, 6), (1, 1, 3, 3), (4, 4, 3, 3),
    (2, 1, 3, 4, 2),
)  # fmt: skip
_TYPES = ("float32", "int8", "uint8", "int32", "int64", "int16", "bool", "float16", "float64", "uint16")
_SMALL = (-3, -2, -1, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 7, 1000, 2**31 - 1, -(2**31), 2**40)
_NUMBERS = (0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 3e38, float("nan"), float("inf"), float("-inf"))
_WORDS = (
    "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "constant", "reflect", "edge", "wrap", "linear", "nearest", "cubic", "none", "add",
    "mul", "max", "DCR", "CRD", "half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize", "floor", "round_prefer_floor", "tanh",
    "up", "ij,jk->ik", "ii->i", "...i->...", "", "x",
)  # fmt: skip


def _array(rng: Rng, dtype: str, shape: tuple[int, ...]) -> Any:
    if dtype.startswith("float"):
        with np.errstate(all="ignore"):
            return np.array(rng.normal(0, 1, shape) if rng.random() < 0.8 else np.full(shape, one(rng, _NUMBERS))).astype(dtype)
    with np.errstate(all="ignore"):
        edge = np.full(shape, one(rng, _SMALL), np.int64)
        return (rng.integers(-2, 6, shape) if rng.random() < 0.8 else edge).astype(dtype)


def random_file(format: str, rng: Rng) -> bytes:
    """The bytes of a file with one operator that its reader knows."""
    return {"tflite": _tflite, "onnx": _onnx, "qgraph": _qgraph}[format](rng)


# ONNX


def _onnx(rng: Rng) -> bytes:
    """A node of an operator that is read, with as many inputs as it takes; float ones may come from a DequantizeLinear."""
    from onnx import helper, numpy_helper

    from qconvert.formats.onnx.signatures import signature as signature_of
    from qconvert.plugins import operators

    key = str(one(rng, sorted(operators("onnx", "read"))))
    domain, _, kind = key.rpartition(".")
    opset = int(one(rng, (7, 9, 11, 13, 17, 18, 21, 22, 25)))
    signature = signature_of(kind, domain, opset)
    fewest, most = signature.inputs if signature else (1, 3)
    count = int(rng.integers(fewest, min(most, fewest + 4) + 1))
    infos, constants, nodes, names = [], [], [], []
    shape, dtype = one(rng, _SHAPES), one(rng, _TYPES)
    for index in range(count):
        is_needed = signature is None or not signature.needed or signature.needed[min(index, len(signature.needed) - 1)]
        if not is_needed and rng.random() < 0.4:
            names.append("")
            continue
        name, chance = f"i{index}", rng.random()
        if chance < 0.5:
            shape, dtype = one(rng, _SHAPES), one(rng, _TYPES)
        names.append(name)
        if rng.random() < (0.2 if index == 0 else 0.6):
            constants.append(numpy_helper.from_array(_array(rng, dtype, shape), name))
        elif rng.random() < 0.2:
            infos.append(helper.make_tensor_value_info(f"{name}q", 3, shape))
            constants.append(numpy_helper.from_array(_array(rng, "float32", ()), f"{name}s"))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}q", f"{name}s"], [name]))
        else:
            stated: Any = [one(rng, (size, "N", None)) if rng.random() < 0.2 else size for size in shape] if rng.random() < 0.9 else None
            infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), stated))
    fewest, most = signature.outputs if signature else (1, 1)
    outputs = [f"o{index}" for index in range(rng.integers(fewest, min(most, 4) + 1))]
    node = helper.make_node(kind, names, outputs, domain=domain)
    for name, number in (signature.attributes if signature else {}).items():
        if name in signature.required or rng.random() < 0.5:
            _add_attribute(node, name, number, rng)
    results = [helper.make_tensor_value_info(name, int(one(rng, (1, 1, 1, 3, 7, 9, 0))), None) for name in outputs]
    imports = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    graph = helper.make_graph([*nodes, node], "g", infos, results, constants)
    data: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return data


def _add_attribute(node: Any, name: str, number: int, rng: Rng) -> None:
    from onnx import AttributeProto, numpy_helper

    item = AttributeProto(name=name, type=number)
    count = int(rng.integers(0, 6))
    match AttributeProto.AttributeType.Name(number):
        case "INT":
            item.i = one(rng, _SMALL)
        case "INTS":
            item.ints.extend(one(rng, _SMALL[:14] if rng.random() < 0.8 else _SMALL) for _ in range(count))
        case "FLOAT":
            item.f = one(rng, _NUMBERS)
        case "FLOATS":
            item.floats.extend(one(rng, _NUMBERS) for _ in range(count))
        case "STRING":
            item.s = one(rng, _WORDS).encode()
        case "STRINGS":
            item.strings.extend(one(rng, _WORDS).encode() for _ in range(count))
        case "TENSOR":
            item.t.CopyFrom(numpy_helper.from_array(_array(rng, one(rng, _TYPES), one(rng, _SHAPES))))
        case _:
            return
    node.attribute.append(item)


# TFLite


@cache
def _option_tables() -> dict[str, str]:
    """The names of option tables by their lower case."""
    from qconvert.formats.tflite.schema_table import UNIONS

    return {name.lower(): name for union in ("BuiltinOptions", "BuiltinOptions2") for name in UNIONS[union].split()}


def _tflite(rng: Rng) -> bytes:
    """An operator that is read, with up to four inputs and two outputs."""
    from qconvert.formats.tflite.schema import TFLITE
    from qconvert.plugins import operators

    builtin = str(one(rng, [name for name in sorted(operators("tflite", "read")) if name.isupper()]))
    tensors, inputs, free = [], [], []
    shape, dtype = one(rng, _SHAPES), one(rng, _TYPES[:7])
    for index in range(rng.integers(0, 5)):
        if rng.random() < 0.1:
            inputs.append(None)
            continue
        if rng.random() < 0.5:
            shape, dtype = one(rng, _SHAPES), one(rng, _TYPES[:7])
        is_constant = rng.random() < (0.2 if index == 0 else 0.6)
        tensors.append(_spec(rng, f"i{index}", shape, dtype, is_constant))
        inputs.append(tensors[-1].name)
        if not is_constant:
            free.append(tensors[-1].name)
    outputs = []
    for index in range(1 if rng.random() < 0.9 else 2):
        if rng.random() < 0.4:
            shape, dtype = one(rng, _SHAPES), one(rng, _TYPES[:7])
        tensors.append(_spec(rng, f"o{index}", shape, dtype, False))
        outputs.append(tensors[-1].name)
    table = _option_tables().get(f"{_OPTIONS.get(builtin, builtin.replace('_', ''))}options".lower())
    options: Any = None
    if table is not None and rng.random() < 0.9:
        options = {}
        for field in TFLITE.fields(table):
            if field.base_type == "scalar" and rng.random() < 0.7:
                options[field.name] = _option(rng, field.detail)
            elif field.base_type == "vector" and rng.random() < 0.7:
                options[field.name] = [_option(rng, field.detail) for _ in range(rng.integers(0, 5))]
    return model([OpSpec(builtin, inputs, outputs, options)], tensors, free, outputs)


def _spec(rng: Rng, name: str, shape: tuple[int, ...], dtype: str, is_constant: bool) -> TensorSpec:
    quantization: dict[str, Any] = {}
    if rng.random() < (0.9 if dtype in ("int8", "uint8", "int16") else 0.1):
        axis = int(rng.integers(len(shape))) if shape and rng.random() < 0.2 else None
        count = 1 if axis is None else shape[axis]
        scale = rng.uniform(0.01, 0.1, count).astype(np.float32)
        if rng.random() < 0.05:
            scale[:1] = one(rng, _NUMBERS)
        quantization = {"scale": scale, "zero_point": [int(one(rng, (0, 0, 3, -128)))] * count, "axis": axis or 0}
    signature = tuple(-1 if rng.random() < 0.3 else size for size in shape) if not is_constant and rng.random() < 0.1 else None
    return TensorSpec(
        name, shape, dtype, data=_array(rng, dtype, shape) if is_constant else None, shape_signature=signature, **quantization
    )


def _option(rng: Rng, sort: str) -> Any:
    if sort in ("float", "double"):
        return float(one(rng, _NUMBERS))
    if sort == "bool":
        return bool(rng.integers(2))
    number = int(one(rng, (0, 1, 1, 2, 3, 100))) if sort in ("byte", "ubyte") else int(one(rng, _SMALL[:17]))
    return abs(number) if sort.startswith("u") else number


# .qgraph


def _qgraph(rng: Rng) -> bytes:
    """An operator of the canonical set."""
    from qconvert.operators import KINDS

    kind = KINDS[str(one(rng, sorted(KINDS)))]
    fewest, most = kind.inputs
    count = int(rng.integers(fewest, (fewest + 3 if most < 0 else most) + 1))
    tensors: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    inputs, free = [], []
    shape, dtype = one(rng, _SHAPES), one(rng, _TYPES[:7])
    for index in range(count):
        if index >= fewest and rng.random() < 0.2:
            inputs.append("")
            continue
        if rng.random() < 0.5:
            shape, dtype = one(rng, _SHAPES), one(rng, _TYPES[:7])
        inputs.append(f"i{index}")
        tensors.append(_tensor(rng, f"i{index}", shape, dtype))
        if rng.random() < (0.2 if index == 0 else 0.6):
            arrays[f"i{index}"] = _array(rng, dtype, shape)
            tensors[-1]["data"] = f"i{index}"
        else:
            free.append(f"i{index}")
    outputs = [f"o{index}" for index in range(max(kind.outputs[0], 0))]
    tensors += [_tensor(rng, name, shape if rng.random() < 0.5 else None, dtype) for name in outputs]
    attributes = {
        name: _attribute(rng, spec) for name, spec in kind.attributes.items() if rng.random() < (0.6 if name in kind.defaults else 0.98)
    }
    op = {"kind": kind.name, "inputs": inputs, "outputs": outputs, "attributes": attributes}
    document = {"qgraph": 1, "name": "g", "inputs": free, "outputs": outputs, "ops": [op], "tensors": tensors}
    header: dict[str, Any] = {"__metadata__": {"qgraph": json.dumps(document)}}
    names = {"float32": "F32", "int8": "I8", "uint8": "U8", "int32": "I32", "int64": "I64", "int16": "I16", "bool": "BOOL"}
    body = b""
    for name, array in arrays.items():
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": [len(body), len(body) + array.nbytes]}
        body += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _tensor(rng: Rng, name: str, shape: tuple[int, ...] | None, dtype: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "dtype": dtype, "shape": None if shape is None else list(shape)}
    if rng.random() < (0.8 if dtype in ("int8", "uint8", "int16") else 0.1):
        axis = int(rng.integers(len(shape))) if shape and rng.random() < 0.2 else None
        count = 1 if axis is None or shape is None else shape[axis]
        found["quantization"] = {"scale": [0.05] * count, "zero_point": [int(one(rng, (0, 0, 3)))] * count, "axis": axis}
    return found


def _attribute(rng: Rng, spec: Any) -> Any:
    if spec.choices and rng.random() < 0.9:
        return one(rng, spec.choices)
    count = int(rng.integers(0, 5))
    return {
        "integer": lambda: one(rng, _SMALL),
        "number": lambda: float(one(rng, _NUMBERS[:7])),
        "integers": lambda: [one(rng, _SMALL[:14]) for _ in range(count)],
        "texts": lambda: ["x"] * count,
    }.get(spec.sort, lambda: one(rng, (*_WORDS, "float32", "int8", "channels_last", "channels_first")))()
