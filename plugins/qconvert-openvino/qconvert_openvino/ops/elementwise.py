"""Operators that work element by element: one or two operands, comparisons, and those with parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qconvert.plugin import Op
from qconvert_openvino.reading import Reading
from qconvert_openvino.writing import Writing, unsupported_error

#: Layer -> canonical kind, and the function of OpenVINO's package.
_UNARY = {
    "Relu": ("ReLU", "relu"), "Sigmoid": ("Sigmoid", "sigmoid"), "Tanh": ("Tanh", "tanh"), "Abs": ("Abs", "abs"),
    "Neg": ("Negative", "negative"), "Exp": ("Exp", "exp"), "Log": ("Log", "log"), "Sqrt": ("Sqrt", "sqrt"), "Erf": ("Erf", "erf"),
    "Floor": ("Floor", "floor"), "Ceil": ("Ceiling", "ceiling"), "Sign": ("Sign", "sign"), "Sin": ("Sin", "sin"),
    "Cos": ("Cos", "cos"), "Tan": ("Tan", "tan"), "Asin": ("Asin", "asin"), "Acos": ("Acos", "acos"), "Atan": ("Atan", "atan"),
    "Sinh": ("Sinh", "sinh"), "Cosh": ("Cosh", "cosh"), "Asinh": ("Asinh", "asinh"), "Acosh": ("Acosh", "acosh"),
    "Atanh": ("Atanh", "atanh"), "HardSwish": ("HSwish", "hswish"), "Softplus": ("SoftPlus", "softplus"), "Mish": ("Mish", "mish"),
    "Softsign": ("SoftSign", "softsign"), "Not": ("LogicalNot", "logical_not"), "IsNaN": ("IsNaN", "is_nan"),
}  # fmt: skip
_BINARY = {
    "Add": ("Add", "add"), "Sub": ("Subtract", "subtract"), "Mul": ("Multiply", "multiply"), "Div": ("Divide", "divide"),
    "Max": ("Maximum", "maximum"), "Min": ("Minimum", "minimum"), "Pow": ("Power", "power"), "Mod": ("Mod", "mod"),
    "FloorMod": ("FloorMod", "floor_mod"), "SquaredDifference": ("SquaredDifference", "squared_difference"),
    "PRelu": ("PReLU", "prelu"), "Equal": ("Equal", "equal"), "NotEqual": ("NotEqual", "not_equal"),
    "Greater": ("Greater", "greater"), "GreaterOrEqual": ("GreaterEqual", "greater_equal"), "Less": ("Less", "less"),
    "LessOrEqual": ("LessEqual", "less_equal"), "And": ("LogicalAnd", "logical_and"), "Or": ("LogicalOr", "logical_or"),
    "Xor": ("LogicalXor", "logical_xor"),
}  # fmt: skip
#: Canonical kind -> the function of OpenVINO's package, and the attributes that are constant inputs of its layer.
_PARAMETERS = {"HardSigmoid": ("hard_sigmoid", ("alpha", "beta")), "Selu": ("selu", ("alpha", "gamma")), "Swish": ("swish", ("alpha",))}
_LAYERS = {layer: kind for table in (_UNARY, _BINARY) for kind, (layer, _) in table.items()}
_LARGEST = float(np.finfo(np.float32).max)


def read_unary(r: Reading) -> None:
    r.emit(_LAYERS[r.node.type], [r.value(0)])


def write_unary(op: Op, w: Writing) -> None:
    w.finish(op, getattr(w.op, _UNARY[op.kind][1])(*w.inputs(op)))


def read_binary(r: Reading) -> None:
    if r.text("auto_broadcast", "numpy") not in ("numpy", "none"):
        raise r.unsupported_error(f"with auto_broadcast {r.text('auto_broadcast')!r}")
    r.emit(_LAYERS[r.node.type], [r.value(0), r.value(1)])


def write_binary(op: Op, w: Writing) -> None:
    w.finish(op, getattr(w.op, _BINARY[op.kind][1])(*w.inputs(op)))


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
    function, names = _PARAMETERS[op.kind]
    w.finish(op, getattr(w.op, function)(w.value(op.inputs[0]), *(w.op.constant(np.float32(op[name])) for name in names)))


def read_hard_sigmoid(r: Reading) -> None:
    r.emit("HardSigmoid", [r.value(0)], alpha=_constant_number(r, 1), beta=_constant_number(r, 2))


def read_selu(r: Reading) -> None:
    r.emit("Selu", [r.value(0)], alpha=_constant_number(r, 1), gamma=_constant_number(r, 2))


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


def read_select(r: Reading) -> None:
    r.emit("Where", [r.value(index) for index in range(3)])


def write_where(op: Op, w: Writing) -> None:
    w.finish(op, w.op.select(*w.inputs(op)))


READERS: dict[str, Callable[[Reading], Any]] = {
    **{layer: read_unary for layer, _ in _UNARY.values()},
    **{layer: read_binary for layer, _ in _BINARY.values()},
    "Divide": read_divide,
    "Clamp": read_clamp,
    "PReLU": read_prelu,
    "HardSigmoid": read_hard_sigmoid,
    "Selu": read_selu,
    "Elu": read_elu,
    "Swish": read_swish,
    "Gelu": read_gelu,
    "Round": read_round,
    "Select": read_select,
}
WRITERS: dict[str, Callable[[Op, Writing], Any]] = {
    **dict.fromkeys(_UNARY, write_unary),
    **dict.fromkeys(_BINARY, write_binary),
    "Clip": write_clip,
    "LeakyRelu": write_leaky_relu,
    **dict.fromkeys(_PARAMETERS, write_with_parameters),
    "Elu": write_elu,
    "Gelu": write_gelu,
    "Round": write_round,
    "Where": write_where,
}
