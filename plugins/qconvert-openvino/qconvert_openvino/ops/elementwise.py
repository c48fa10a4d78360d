"""Operators that work element by element: one or two operands, comparisons, and those with parameters."""

from __future__ import annotations

import math

import numpy as np

from qconvert.plugin import KINDS, Op
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing, unsupported_error

#: Canonical kind -> layer, of the same operands; those of _BINARY are broadcast.
_SAME = {
    **{kind: kind for kind in (
        "Sigmoid", "Tanh", "Abs", "Exp", "Log", "Sqrt", "Erf", "Floor", "Sign", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
        "Asinh", "Acosh", "Atanh", "Mish", "IsNaN",
    )},
    "Relu": "ReLU", "Neg": "Negative", "Ceil": "Ceiling", "HardSwish": "HSwish", "Softplus": "SoftPlus", "Softsign": "SoftSign",
    "Not": "LogicalNot", "Where": "Select",
}  # fmt: skip
_BINARY = {
    **{kind: kind for kind in ("Add", "Mod", "FloorMod", "SquaredDifference", "Equal", "NotEqual", "Greater", "Less")},
    "Sub": "Subtract", "Mul": "Multiply", "Div": "Divide", "Max": "Maximum", "Min": "Minimum", "Pow": "Power", "PRelu": "PReLU",
    "GreaterOrEqual": "GreaterEqual", "LessOrEqual": "LessEqual", "And": "LogicalAnd", "Or": "LogicalOr", "Xor": "LogicalXor",
}  # fmt: skip
#: Canonical kind -> the attributes that are constant inputs of its layer, which has the same name.
_PARAMETERS = {"HardSigmoid": ("alpha", "beta"), "Selu": ("alpha", "gamma"), "Swish": ("alpha",)}
_LAYERS = {**_SAME, **_BINARY}
_KINDS = {layer: kind for kind, layer in _LAYERS.items()}
_LARGEST = float(np.finfo(np.float32).max)


def read_layer(r: Reading) -> None:
    kind = _KINDS[r.node.type]
    r.emit(kind, [r.value(index) for index in range(KINDS[kind].inputs[0])])


def write_layer(op: Op, w: Writing) -> None:
    w.finish(op, w.create(_LAYERS[op.kind], *w.inputs(op)))


def read_binary(r: Reading) -> None:
    if r.text("auto_broadcast", "numpy") not in ("numpy", "none"):
        raise r.unsupported_error(f"with auto_broadcast {r.text('auto_broadcast')!r}")
    read_layer(r)


def read_divide(r: Reading) -> None:
    """Divide; of integers a FloorDiv, unless the attribute m_pythondiv is false."""
    port = r.result
    if port.type.startswith(("i", "u")) and r.flag("m_pythondiv", True):
        r.emit("FloorDiv", [r.value(0), r.value(1)])
    else:
        read_binary(r)


def read_clamp(r: Reading) -> None:
    """Clamp: a Clip whose bounds are attributes."""
    bounds = [r.number(name) for name in ("min", "max")]
    port = r.port(0)
    if port.type not in ("f32", "f16"):
        raise r.unsupported_error(f"of {port.type}")
    names = [r.draft.add(f"{r.node.name}/{side}", "float32", (), np.array(value, np.float32)) if abs(value) < _LARGEST else ""
             for side, value in zip(("min", "max"), bounds, strict=True)]  # fmt: skip
    r.emit("Clip", [r.value(0), *([*names] if names[1] else names[:1] if names[0] else [])])


def write_clip(op: Op, w: Writing) -> None:
    """A Clamp, or Maximum and Minimum if bounds are computed."""
    bounds = [w.graph.constant(op.inputs[index]) if op.has(index) else np.array(limit) for index, limit in ((1, -_LARGEST), (2, _LARGEST))]
    data = w.value(op.inputs[0])
    if bounds[0] is None or bounds[1] is None or not w.graph[op.inputs[0]].dtype.startswith(("float", "int8", "uint8", "int16")):
        for index, make in ((1, w.op.maximum), (2, w.op.minimum)):
            data = make(data, w.value(op.inputs[index])) if op.has(index) else data
        w.finish(op, data)
        return
    low, high = (float(bound.reshape(-1)[0]) for bound in bounds if bound is not None)
    if math.isnan(low) or math.isnan(high):
        raise unsupported_error(op, "with a bound that is no number")
    w.finish(op, w.op.clamp(data, min(low, high), high))


def write_leaky_relu(op: Op, w: Writing) -> None:
    w.finish(op, w.op.prelu(w.value(op.inputs[0]), w.op.constant(np.array([op["alpha"]], np.float32))))


def read_prelu(r: Reading) -> None:
    """PReLU; with one constant slope a LeakyRelu. Per-channel slopes are along axis 1."""
    slope = r.data(1)
    if slope is not None and slope.size == 1 and slope.dtype == np.float32:
        r.emit("LeakyRelu", [r.value(0)], alpha=float(slope.reshape(-1)[0]))
        return
    if r.rank(1) == 1 and r.rank(0) > 2:
        shape = tuple(r.port(1).shape[0] if axis == 1 else 1 for axis in range(r.rank(0)))
        turned = r.step("Reshape", [r.value(1), r.index(shape)], shape)
        r.emit("PRelu", [r.value(0), turned])
        return
    read_binary(r)


def _constant_number(r: Reading, index: int) -> float:
    data = r.data(index)
    if data is None or data.size != 1:
        raise r.unsupported_error("with parameters that are computed when the model runs", rule="not-constant")
    return float(data.reshape(-1)[0])


def write_with_parameters(op: Op, w: Writing) -> None:
    """A function whose parameters are constant inputs."""
    constants = (w.op.constant(np.float32(op[name])) for name in _PARAMETERS[op.kind])
    w.finish(op, w.create(op.kind, w.value(op.inputs[0]), *constants))


def read_with_parameters(r: Reading) -> None:
    """A function whose parameters are constant inputs."""
    names = _PARAMETERS[r.node.type]
    r.emit(r.node.type, [r.value(0)], **{name: _constant_number(r, place) for place, name in enumerate(names, 1)})


def read_elu(r: Reading) -> None:
    r.emit("Elu", [r.value(0)], alpha=r.number("alpha"))


def write_elu(op: Op, w: Writing) -> None:
    w.finish(op, w.op.elu(w.value(op.inputs[0]), float(op["alpha"])))


def read_swish(r: Reading) -> None:
    r.emit("Swish", [r.value(0)], alpha=_constant_number(r, 1) if r.count > 1 else 1.0)


def read_gelu(r: Reading) -> None:
    mode = r.choice("approximation_mode", {"ERF": "none", "erf": "none", "TANH": "tanh", "tanh": "tanh"}, "ERF")
    r.emit("Gelu", [r.value(0)], **({"approximate": mode} if mode != "none" else {}))


def write_gelu(op: Op, w: Writing) -> None:
    w.finish(op, w.op.gelu(w.value(op.inputs[0]), "TANH" if op["approximate"] == "tanh" else "ERF"))


def read_round(r: Reading) -> None:
    if r.text("mode", "half_to_even") != "half_to_even":
        raise r.unsupported_error("of halves away from zero")
    r.emit("Round", [r.value(0)])


def write_round(op: Op, w: Writing) -> None:
    w.finish(op, w.op.round(w.value(op.inputs[0]), "half_to_even"))


READERS = {
    **dict.fromkeys(_SAME.values(), read_layer),
    **dict.fromkeys(_BINARY.values(), read_binary),
    "Divide": read_divide,
    "Clamp": read_clamp,
    "PReLU": read_prelu,
    **dict.fromkeys(("HardSigmoid", "Selu"), read_with_parameters),
    "Elu": read_elu,
    "Swish": read_swish,
    "Gelu": read_gelu,
    "Round": read_round,
}
WRITERS = {
    **dict.fromkeys(_LAYERS, write_layer),
    "Clip": write_clip,
    "LeakyRelu": write_leaky_relu,
    **dict.fromkeys(_PARAMETERS, write_with_parameters),
    "Elu": write_elu,
    "Gelu": write_gelu,
    "Round": write_round,
}
