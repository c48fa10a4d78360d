"""Operators that work element by element: one or two operands, those with parameters, and conversions between float values and integers,
which are layers only if a value is rounded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qconvert.plugin import Op, Quantization, conditions, integer_range
from qconvert_ncnn.blobs import unsupported_error
from qconvert_ncnn.container import pack_weights
from qconvert_ncnn.quantizations import inverse, is_data_quantization
from qconvert_ncnn.reading import ROUNDING, Reading
from qconvert_ncnn.writing import CLIP, MULTIPLIED, ROUND, Step, Writing

#: Layers of one operand without parameters -> kind.
_LAYERS = {"Sigmoid": "Sigmoid", "TanH": "Tanh", "AbsVal": "Abs", "Mish": "Mish", "Softplus": "Softplus", "Erf": "Erf", "Exp": "Exp",
           "Swish": "Swish"}  # fmt: skip
#: Kind -> its layer, and the attributes that are its parameters, from 0 on.
_WRITTEN: dict[str, tuple[str, tuple[str, ...]]] = {
    **{kind: (layer, ()) for layer, kind in _LAYERS.items() if kind not in ("Exp", "Softplus")},
    "Relu": ("ReLU", ()),
    "LeakyRelu": ("ReLU", ("alpha",)),
    "HardSigmoid": ("HardSigmoid", ("alpha", "beta")),
    "Elu": ("ELU", ("alpha",)),
    "Selu": ("SELU", ("alpha", "gamma")),
}
#: UnaryOp's op_type -> kind.
_UNARY = {0: "Abs", 1: "Neg", 2: "Floor", 3: "Ceil", 4: "Square", 5: "Sqrt", 6: "Rsqrt", 7: "Exp", 8: "Log", 9: "Sin", 10: "Cos",
          11: "Tan", 12: "Asin", 13: "Acos", 14: "Atan", 15: "Reciprocal", 16: "Tanh", ROUND: "Round"}  # fmt: skip
_UNARY_OF = {kind: number for number, kind in _UNARY.items() if kind not in _WRITTEN}
#: BinaryOp's op_type -> kind; the operands of _TURNED are swapped.
_BINARY = {0: "Add", 1: "Sub", 2: "Mul", 3: "Div", 4: "Max", 5: "Min", 6: "Pow"}
_TURNED = {7: "Sub", 8: "Div", 9: "Pow"}
_BINARY_OF = {kind: number for number, kind in _BINARY.items()}
_TURNED_OF = {"Add": 0, "Mul": 2, "Max": 4, "Min": 5, **{kind: number for number, kind in _TURNED.items()}}
_SQUARED, _ROOT, _ROOT_BELOW, _BELOW_ONE = 4, 5, 6, 15
#: The largest integer exponent that is written.
_HIGHEST = 16
_LARGEST = float(np.finfo(np.float32).max)


def write_layer(op: Op, w: Writing) -> None:
    """A layer of its own, with parameters that are attributes."""
    layer, attributes = _WRITTEN[op.kind]
    w.finish(op, layer, {key: float(op[name]) for key, name in enumerate(attributes)})


def write_unary(op: Op, w: Writing) -> None:
    w.finish(op, "UnaryOp", {0: _UNARY_OF[op.kind]})


def read_unary(r: Reading) -> None:
    number = r.layer.integer(0)
    if number not in _UNARY:
        raise r.unsupported_error(f"of the kind {number}")
    r.emit(_UNARY[number], [r.value()])


def read_named(r: Reading) -> None:
    if r.layer.kind == "Exp" and (r.layer.number(0, -1.0), r.layer.number(1, 1.0), r.layer.number(2)) != (-1.0, 1.0, 0.0):
        raise r.unsupported_error("with a base or factors")
    r.emit(_LAYERS[r.layer.kind], [r.value()])


def write_softplus(op: Op, w: Writing) -> None:
    """Softplus of Min(x, 80), and Max with x: ncnn's Softplus computes Exp, which is infinite from 89 on."""
    value = w.value(op.inputs[0])
    w.steps(op, [
        Step(CLIP, {0: -_LARGEST, 1: 80.0}, inputs=(value,), suffix="bounded"),
        Step("Softplus", {}, suffix="softplus"),
        Step("BinaryOp", {0: _BINARY_OF["Max"]}, inputs=(value,), suffix="real"),
    ])  # fmt: skip


def write_binary(op: Op, w: Writing) -> None:
    """BinaryOp of two blobs, or of one and a number."""
    rank = len(w.sizes(op.outputs[0]))
    numbers = [_constant_number(op, w, index) for index in (0, 1)]
    if numbers[1] is not None:
        w.finish(op, "BinaryOp", {0: _BINARY_OF[op.kind], 1: 1, 2: numbers[1]}, inputs=[w.value(op.inputs[0], rank)])
    elif numbers[0] is not None:
        w.finish(op, "BinaryOp", {0: _TURNED_OF[op.kind], 1: 1, 2: numbers[0]}, inputs=[w.value(op.inputs[1], rank)])
    else:
        w.finish(op, "BinaryOp", {0: _BINARY_OF[op.kind]}, inputs=[w.value(name, rank) for name in op.inputs])


def _constant_number(op: Op, w: Writing, index: int) -> float | None:
    """Return the only number of a constant operand, as float32; None for other operands."""
    tensor = w.graph[op.inputs[index]]
    if tensor.data is None or tensor.data.size != 1 or len(tensor.data.shape) > len(w.sizes(op.outputs[0])) + 1:
        return None
    return float(w.real(tensor).reshape(-1)[0])


def read_binary(r: Reading) -> None:
    """BinaryOp; ncnn broadcasts a blob of one dimension along the channels of the other."""
    number = r.layer.integer(0)
    kind, turned = _BINARY.get(number) or _TURNED.get(number, ""), number in _TURNED
    if not kind:
        raise r.unsupported_error(f"of the kind {number}")
    if r.layer.integer(1):
        names = [r.value(), r.scalar(r.layer.number(2))]
    else:
        names = _align_operands(r)
    r.emit(kind, names[::-1] if turned else names)


def _align_operands(r: Reading) -> list[str]:
    """Return both operands, with sizes of 1 as ncnn adds them: trailing ones; leading ones for a vector that is not along channels."""
    shapes, names = [r.shape(index)[1:] for index in (0, 1)], [r.value(0), r.value(1)]
    rank = max(len(shape) for shape in shapes)
    for index, shape in enumerate(shapes):
        other = shapes[1 - index]
        more = (1,) * (rank - len(shape))
        if more:
            wide = (*more, *shape) if len(shape) == 1 and shape[0] != other[0] else (*shape, *more)
            names[index] = r.step("Reshape", [names[index], r.numbers((1, *wide))])
    return names


def write_pow(op: Op, w: Writing) -> None:
    """Powers by squares, products, roots and reciprocals: ncnn's Pow computes a logarithm, which fails for negative values."""
    exponent = _constant_number(op, w, 1)
    root = {0.5: _ROOT, -0.5: _ROOT_BELOW}.get(exponent or 0.0)
    if exponent is None or (root is None and not (exponent.is_integer() and 1 <= abs(exponent) <= _HIGHEST)):
        raise unsupported_error(op, f"with the exponent {'that is computed' if exponent is None else exponent}")
    value = w.value(op.inputs[0], len(w.sizes(op.outputs[0])))
    steps = [Step("UnaryOp", {0: root}, suffix="root")] if root is not None else _power_steps(int(exponent), value)
    w.steps(op, [replace(steps[0], inputs=(value,)), *steps[1:]])


def _power_steps(exponent: int, value: str) -> list[Step]:
    """Return the steps of an integer power: squares, and a product with the value for each further 1 in the exponent's bits."""
    steps = list[Step]()
    for bit in f"{abs(exponent):b}"[1:]:
        steps.append(Step("UnaryOp", {0: _SQUARED}, suffix="square"))
        steps += [Step("BinaryOp", {0: MULTIPLIED}, inputs=(value,), suffix="power")] if bit == "1" else []
    steps += [Step("UnaryOp", {0: _BELOW_ONE}, suffix="reciprocal")] if exponent < 0 else []
    return steps or [Step("Noop", {}, suffix="power")]


def read_eltwise(r: Reading) -> None:
    """Eltwise: a product, a sum or a maximum of blobs of one shape."""
    kind = {0: "Mul", 1: "Add", 2: "Max"}.get(r.layer.integer(0))
    if kind is None or any(number != 1 for number in r.layer.numbers(1)) or len(r.layer.inputs) < 2:
        raise r.unsupported_error("with factors, or of one blob")
    value = r.value(0)
    for index in range(1, len(r.layer.inputs) - 1):
        value = r.step(kind, [value, r.value(index)])
    r.emit(kind, [value, r.value(len(r.layer.inputs) - 1)])


def read_relu(r: Reading) -> None:
    slope = r.layer.number(0)
    if slope:
        r.emit("LeakyRelu", [r.value()], alpha=slope)
    else:
        r.emit("Relu", [r.value()])


def write_clip(op: Op, w: Writing) -> None:
    """Clip; a missing bound is the largest number."""
    bounds = [w.graph[op.inputs[index]] if op.has(index) else None for index in (1, 2)]
    if any(bound is not None and bound.data is None for bound in bounds):
        raise unsupported_error(op, "with bounds that are computed when the model runs", rule="not-constant")
    low, high = (
        limit if bound is None else float(w.real(bound).reshape(-1)[0]) for bound, limit in zip(bounds, (-_LARGEST, _LARGEST), strict=True)
    )
    w.finish(op, CLIP, {0: max(min(low, high), -_LARGEST), 1: min(high, _LARGEST)})


def read_clip(r: Reading) -> None:
    low, high = r.layer.number(0, -_LARGEST), r.layer.number(1, _LARGEST)
    bounds = ["" if low <= -_LARGEST else r.scalar(low), "" if high >= _LARGEST else r.scalar(high)]
    r.emit("Clip", [r.value(), *(bounds if bounds[1] else bounds[:1] if bounds[0] else [])])


def write_prelu(op: Op, w: Writing) -> None:
    """PReLU with one slope, or one for each channel."""
    slope, sizes = w.graph[op.inputs[1]], w.sizes(op.outputs[0])
    if slope.data is None:
        raise unsupported_error(op, "with slopes that are computed when the model runs", rule="not-constant")
    real = w.real(slope)
    along = real.reshape((1,) * (len(sizes) + 1 - real.ndim) + real.shape)
    if real.size not in (1, sizes[0]) or along.shape[1] != real.size:
        raise unsupported_error(op, "with slopes that are not one for each channel")
    w.finish(op, "PReLU", {0: real.size}, pack_weights(real.reshape(-1)))


def read_prelu(r: Reading) -> None:
    (slopes,), shape = r.weights, r.shape()
    if slopes.size not in (1, shape[1]):
        raise r.layer.invalid(f"the number of slopes is {slopes.size}, the shape of the data is {shape}", rule="counts-differ")
    r.emit("PRelu", [r.value(), r.parameter(slopes.reshape(1, -1, *(1,) * (len(shape) - 2)), "slopes")])


def write_hard_swish(op: Op, w: Writing) -> None:
    """HardSwish: x * alpha + beta between 0 and 1, times x."""
    w.finish(op, "HardSwish", {0: 1 / 6, 1: 0.5})


def read_hard_activation(r: Reading) -> None:
    alpha, beta = r.layer.number(0, 0.2), r.layer.number(1, 0.5)
    if r.layer.kind == "HardSigmoid":
        r.emit("HardSigmoid", [r.value()], alpha=alpha, beta=beta)
    elif (np.float32(alpha), beta) == (np.float32(1 / 6), 0.5):
        r.emit("HardSwish", [r.value()])
    else:
        r.emit("Mul", [r.value(), r.step("HardSigmoid", [r.value()], alpha=alpha, beta=beta)])


@conditions(lambda op, scope: "" if op["alpha"] == 1 else f"its alpha is {op['alpha']}, not 1")
def write_swish(op: Op, w: Writing) -> None:
    write_layer(op, w)


def write_gelu(op: Op, w: Writing) -> None:
    w.finish(op, "GELU", {0: int(op["approximate"] == "tanh")})


def read_gelu(r: Reading) -> None:
    r.emit("Gelu", [r.value()], **({"approximate": "tanh"} if r.layer.integer(0) else {}))


def read_elu(r: Reading) -> None:
    r.emit("Elu", [r.value()], alpha=r.layer.number(0, 0.1))


def read_selu(r: Reading) -> None:
    r.emit("Selu", [r.value()], alpha=r.layer.number(0, 1.67326324), gamma=r.layer.number(1, 1.050700987))


def write_quantize(op: Op, w: Writing) -> None:
    """Quantize and Requantize: the steps of the rounding, or nothing if the readers round."""
    steps = w.following_steps(op)
    if not steps:
        w.alias(op)
        return
    w.chain(op, [replace(steps[0], inputs=(w.value(op.inputs[0]),)), *steps[1:]])


def write_dequantize(op: Op, w: Writing) -> None:
    """Dequantize: blobs have float values already."""
    w.alias(op)


def read_quantization(r: Reading) -> None:
    """The layer ROUNDING, in place of the four layers of a rounding: Quantize and Dequantize."""
    (blob,), low, high = r.layer.outputs, int(r.layer.number(1)), int(r.layer.number(2))
    scale, noted = np.array([r.layer.number(3)], np.float32), r.draft.notes.quantizations.get(blob)
    q = None if noted is None else noted.quantization
    if noted is not None and q is not None and (q.scale[0], *(limit - q.point for limit in q.limits(noted.dtype))) == (scale[0], low, high):
        dtype = noted.dtype
    else:
        dtype = next((name for name in ("int8", "int16") if high - low <= integer_range(name)[1] - integer_range(name)[0]), "")
        if not dtype:
            raise r.layer.invalid(f"the integers run from {low} to {high}", rule="limits-outside-type")
        smallest, largest = integer_range(dtype)
        point = 0 if smallest <= low and high <= largest else smallest - low
        q = Quantization(scale, np.array([point])).with_limits(dtype, low + point, high + point)
    stored = r.draft.add(f"{blob}/{dtype}", dtype, None, None, q)
    r.draft.emit(Op("Quantize", (r.value(),), (stored,), {}, str(r.layer)))
    r.draft.values[blob] = r.draft.emit_dequantize(stored, str(r.layer), blob)
    if is_data_quantization(dtype, q):
        r.draft.quantizations[blob] = float(inverse(scale)[0])


READERS = {
    ROUNDING: read_quantization,
    **dict.fromkeys(_LAYERS, read_named),
    "UnaryOp": read_unary,
    "BinaryOp": read_binary,
    "Eltwise": read_eltwise,
    "ReLU": read_relu,
    CLIP: read_clip,
    "PReLU": read_prelu,
    "HardSigmoid": read_hard_activation,
    "HardSwish": read_hard_activation,
    "GELU": read_gelu,
    "ELU": read_elu,
    "SELU": read_selu,
}
WRITERS = {
    **dict.fromkeys(("Quantize", "Requantize"), write_quantize),
    "Dequantize": write_dequantize,
    **dict.fromkeys(_UNARY_OF, write_unary),
    **dict.fromkeys(_WRITTEN, write_layer),
    **dict.fromkeys(_BINARY_OF, write_binary),
    "Softplus": write_softplus,
    "Pow": write_pow,
    "Clip": write_clip,
    "PRelu": write_prelu,
    "HardSwish": write_hard_swish,
    "Swish": write_swish,
    "Gelu": write_gelu,
}
