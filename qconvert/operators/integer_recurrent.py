"""Recurrent operators as TFLite alone has them: on integers, with quantizations of their inner sums, its int8 UNIDIRECTIONAL_SEQUENCE_LSTM
and SVDF, and one step of its LSTM of uint8 data with an int16 cell (BasicLSTM); and SVDF of real data.

What those on integers compute is their kernel's (arithmetic/recurrent_kernels.py): real-valued functions do not describe them, since sums
saturate and round several times inside. States are inputs and outputs here, as the LSTM of ONNX has them; ReadState and WriteState carry
them from run to run.

SVDF is a layer of filters over data and time (kernels/internal/reference/svdf.h). Each filter multiplies the data by weights, keeps its
last products, and multiplies these by weights of its own; `rank` filters that follow each other make one unit. With integer weights the
kernel of real data rounds each row to 8 bits when it runs, as `arithmetic` says; weights over the memory only stand for float values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qconvert.arithmetic import BASIC_GATES, GATES, BasicLstm, IntegerGate, IntegerLstm, IntegerProjection, IntegerSvdf
from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Tensor
from qconvert.operators.attributes import ACTIVATION, flag, has, integer, number
from qconvert.operators.call import Call, apply_activation
from qconvert.operators.kind import Broken, Kind
from qconvert.operators.products import DYNAMIC_ROWS, products_of_rows, rounded_rows
from qconvert.operators.properties import any_value, in_rows
from qconvert.operators.sizes import ShapeContext, Shapes, Size, failure, is_compatible

#: What each input of an IntegerLSTM is; those of TFLite in an order in which what is never absent comes first.
LSTM_INPUTS = (
    "data", "hidden", "cell",
    "forget_weights", "cell_weights", "output_weights", "forget_recurrent", "cell_recurrent", "output_recurrent",
    "forget_bias", "cell_bias", "output_bias",
    "input_weights", "input_recurrent", "input_bias",
    "input_peephole", "forget_peephole", "output_peephole",
    "projection_weights", "projection_bias",
    "input_norm", "forget_norm", "cell_norm", "output_norm",
)  # fmt: skip
SVDF_INPUTS = ("data", "memory", "feature", "time", "bias")
BASIC_INPUTS = ("data", "hidden", "cell", "weights", "bias")
_BASIC_CELL_SCALE = 2.0**-11

_ROLES = {"data": "data", "hidden": "data", "cell": "data", "weights": "weights", "recurrent": "weights", "bias": "bias?",
          "peephole": "parameter?", "norm": "parameter?"}  # fmt: skip
#: What frexp() gives of a power of two, and the powers for which there is a tanh.
_POWER_OF_TWO, _LOWEST_POWER, _HIGHEST_POWER = 0.5, -15, -9
_LSTM_WEIGHTS = tuple(index for index, name in enumerate(LSTM_INPUTS) if name.endswith(("weights", "recurrent")))
_OPTIONAL = ("input_weights", "input_recurrent", "projection_weights")


def _role(name: str) -> str:
    found = _ROLES.get(name) or _ROLES[name.rpartition("_")[2]]
    return f"{found}?" if name in _OPTIONAL else found


def _stored_problem(tensors: dict[str, Tensor]) -> Broken | None:
    """Return the rule of both kinds that the tensors (names: LSTM_INPUTS or SVDF_INPUTS, and "output") break; None if they break none."""
    for name, tensor in tensors.items():
        q = tensor.quantization
        if q is None and name.endswith("bias"):  # whose scale no kernel reads
            continue
        if q is None or not q.is_per_tensor:
            return "not-per-tensor", f"has {tensor.name!r} with {'no scale' if q is None else f'{q.scale.size} scales'}, not one"
        if name not in ("data", "hidden", "output", "memory") and not q.is_symmetric:
            return "zero-point-not-zero", f"has {tensor.name!r} with a zero point, which its kernel takes for 0"
    return None


def _lstm_problem(op: Op, tensors: dict[str, Tensor]) -> Broken | None:
    if problem := _stored_problem(tensors):
        return problem
    mantissa, power = math.frexp(_scale(tensors["cell"]))
    if mantissa != _POWER_OF_TWO or not _LOWEST_POWER <= power - 1 <= _HIGHEST_POWER:
        return (
            "scale-not-power-of-two",
            f"has {tensors['cell'].name!r} with the scale {_scale(tensors['cell']):g}, not a power of two from 2**-15 to 2**-9",
        )
    alone = {"input_weights", "input_recurrent"} & set(tensors)
    if len(alone) == 1 or ("projection_bias" in tensors and "projection_weights" not in tensors):
        return "incomplete-parameters", f"has {', '.join(sorted(alone)) or 'projection_bias'} alone"
    parts = [f"{gate}_{what}" for what in ("peephole", "norm") for gate in _gates_with(tensors, what)]
    given = {role for role in tensors if role.endswith(("_peephole", "_norm"))}
    if given != set(parts):
        return "incomplete-parameters", f"has {sorted(given)}, which are not those of all gates"
    scales = [float(op["hidden_scale"]), *(float(op[f"{gate}_scale"]) for gate in GATES)]
    if min(scales) <= 0 or not -128 <= int(op["hidden_zero_point"]) <= 127:
        return "invalid-quantization", "has an invalid hidden zero point or invalid scales of its gates"
    cells = (tensors["forget_weights"].shape or (None,))[0]
    inputs, outputs = ((tensors[name].shape or (None,))[-1] for name in ("data", "hidden"))
    if "forget_peephole" in tensors and isinstance(outputs, int) and isinstance(cells, int) and outputs > cells:
        return "kernel-reads-outside", f"has peepholes of {cells} cells for {outputs} outputs; its kernel would read beyond them"
    wanted = {"weights": (cells, inputs), "recurrent": (cells, outputs), "bias": (cells,), "peephole": (cells,), "norm": (cells,)}
    wanted |= {"projection_weights": (outputs, cells), "projection_bias": (outputs,)}
    rows = {"hidden": (None, outputs), "cell": (None, cells)}
    if "projection_weights" not in tensors and outputs != cells:
        return "incomplete-parameters", f"has {cells} cells and {outputs} outputs, without a projection"
    return _shape_problem({name: rows.get(name) or wanted.get(name) or wanted.get(name.rpartition("_")[2]) for name in tensors}, tensors)


def _gates_with(tensors: dict[str, Tensor], what: str) -> list[str]:
    """The gates that have peepholes, or a layer normalization, if the forget gate has: its kernel looks at that alone."""
    gates = [gate for gate in GATES if gate != "input" or "input_weights" in tensors]
    return [gate for gate in gates if f"forget_{what}" in tensors and (what == "norm" or gate != "cell")]


def _svdf_problem(op: Op, tensors: dict[str, Tensor]) -> Broken | None:
    if problem := _stored_problem(tensors):
        return problem
    filters, inputs = tensors["feature"].static_shape or (0, 0)
    places = (tensors["time"].static_shape or (0,))[-1]
    rank = int(op["rank"])
    if rank < 1 or filters % rank:
        return "shape-mismatch", f"has {filters} filters, which rank {rank} does not divide"
    rows = (tensors[name].shape for name in ("data", "memory"))
    if not is_compatible(*(shape[:1] if shape else None for shape in rows)):
        return "shape-mismatch", f"has data of shape {tensors['data'].shape} and memory of shape {tensors['memory'].shape}"
    memory, time = tensors["memory"], tensors["time"]
    if memory.dtype not in ("int8", "int16") or memory.dtype != time.dtype:
        return "type-mismatch", f"has a memory of {memory.dtype} and weights over it of {time.dtype}, not both of int16 or of int8"
    if memory.dtype == "int16" and memory.quantization is not None and not memory.quantization.is_symmetric:
        return "zero-point-not-zero", f"has {memory.name!r} with a zero point, which its kernel takes for 0"
    wanted = {"data": (None, inputs), "memory": (None, filters * places), "time": (filters, places), "bias": (filters // rank,)}
    return _shape_problem({name: wanted.get(name) for name in tensors}, tensors)


def _basic_problem(op: Op, tensors: dict[str, Tensor]) -> Broken | None:
    """Return the rule that the tensors, by the names in BASIC_INPUTS, break, and the reason; None if their kernel takes them."""
    for name in ("weights", "bias", "cell"):
        if tensors[name].per_tensor is None:
            return "not-per-tensor", f"has {tensors[name].name!r} without one scale"
    if _scale(tensors["cell"]) != _BASIC_CELL_SCALE:
        return "scale-not-exact", f"has {tensors['cell'].name!r} with the scale {_scale(tensors['cell']):g}, not 2**-11"
    hidden, data = (tensors[name].static_shape or () for name in ("hidden", "data"))
    if len(hidden) != 2 or len(data) != 2:
        return (
            "wrong-rank",
            f"has data of shape {tensors['data'].shape} and hidden values of shape {tensors['hidden'].shape}, not of rank 2",
        )
    (rows, cells), inputs = hidden, data[1]
    count = len(BASIC_GATES) * cells
    wanted = {"data": (rows, inputs), "hidden": (rows, cells), "cell": (rows, cells), "weights": (count, inputs + cells), "bias": (count,)}
    wrong = [name for name, shape in wanted.items() if tensors[name].static_shape != shape]
    if wrong:
        return "shape-mismatch", f"has {tensors[wrong[0]].name!r} of shape {tensors[wrong[0]].shape}, not {wanted[wrong[0]]}"
    return None


def _shape_problem(wanted: Mapping[str, tuple[Size | None, ...] | None], tensors: dict[str, Tensor]) -> Broken | None:
    for name, sizes in wanted.items():
        shape = tensors[name].shape
        if sizes is None or shape is None:
            continue
        if len(shape) != len(sizes) or any(a != b for a, b in zip(shape, sizes, strict=True) if isinstance(a, int) and isinstance(b, int)):
            return "shape-mismatch", f"has {tensors[name].name!r} of shape {shape}, not {sizes}"
    return None


def _scale(tensor: Tensor) -> float:
    return tensor.require_quantization().step


def _quantization(tensor: Tensor) -> tuple[float, int]:
    return _scale(tensor), tensor.require_quantization().point


def integer_lstm(op: Op, tensors: dict[str, Tensor], values: dict[str, Array]) -> IntegerLstm:
    """The layer that an IntegerLSTM is, of its tensors by the names in LSTM_INPUTS, with the result under "output", and constant values."""
    scaled = {name: (data, _scale(tensors[name])) for name, data in values.items() if tensors[name].is_quantized}
    gates = {
        gate: IntegerGate(
            scaled[f"{gate}_weights"],
            scaled[f"{gate}_recurrent"],
            values.get(f"{gate}_bias"),
            scaled.get(f"{gate}_peephole"),
            scaled.get(f"{gate}_norm"),
            float(np.float32(op[f"{gate}_scale"])),
        )
        for gate in GATES
        if f"{gate}_weights" in values
    }
    projection = None
    if "projection_weights" in values:
        weights, clip = scaled["projection_weights"], float(op["projection_clip"])
        projection = IntegerProjection(weights, values.get("projection_bias"), clip, _scale(tensors["output"]))
    hidden = float(np.float32(op["hidden_scale"])), int(op["hidden_zero_point"])
    power = round(math.log2(_scale(tensors["cell"])))
    quantizations = _quantization(tensors["data"]), _quantization(tensors["hidden"]), hidden
    return IntegerLstm(gates, *quantizations, power, float(op["cell_clip"]), projection, bool(op["time_major"]))


def integer_svdf(op: Op, tensors: dict[str, Tensor], values: dict[str, Array]) -> IntegerSvdf:
    """The layer that an IntegerSVDF is, of its tensors, with the result under "output", and constant values."""
    feature, time = ((values[name], _scale(tensors[name])) for name in ("feature", "time"))
    quantizations = _quantization(tensors["data"]), _quantization(tensors["output"])
    memory_scale, zero_point = _quantization(tensors["memory"])
    return IntegerSvdf(feature, time, values.get("bias"), *quantizations, memory_scale, int(op["rank"]), zero_point)


def basic_lstm(tensors: dict[str, Tensor], weights: Array, bias: Array) -> BasicLstm:
    """The layer that a BasicLSTM is."""
    return BasicLstm(weights, tensors["weights"].require_quantization().point, bias, _scale(tensors["bias"]))


def name_tensors(op: Op, inputs: Sequence[str], find: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """The tensors of an operator by what they are to it: its inputs by the names in `inputs`, and its first result as "output"."""
    found = {role: find(name) for role, name in zip(inputs, op.inputs, strict=False) if name}
    return {**found, "output": find(op.name)}


def _make_kind(
    name: str,
    names: Sequence[str],
    problem: Callable[[Op, dict[str, Tensor]], Broken | None],
    run: Callable[[Op, dict[str, Tensor], dict[str, Array]], list[Array]],
    **stated: Any,
) -> Kind:
    """A kind on integers whose inputs have `names`, and the rules in `problem`."""

    def evaluate(call: Call) -> list[Array]:
        tensors = {name: tensor for name, tensor in zip(names, call.tensors, strict=False) if tensor is not None}
        tensors["output"] = call.results[0]
        if broken := problem(call.op, tensors):
            raise ValueError(broken[1])
        return run(call.op, tensors, {name: value for name, value in zip(names, call.stored, strict=False) if value is not None})

    return Kind(
        name,
        recurs=True,
        tensor_rule=lambda op, find: problem(op, name_tensors(op, names, find)),
        rule="stored",
        evaluate=evaluate,
        **stated,
    )


def _run_lstm(op: Op, tensors: dict[str, Tensor], values: dict[str, Array]) -> list[Array]:
    layer = integer_lstm(op, tensors, values)
    data = values["data"] if layer.time_major else values["data"].transpose(1, 0, 2)
    outputs, hidden, cell = layer.run(data, values["hidden"], values["cell"])
    return [outputs if layer.time_major else outputs.transpose(1, 0, 2), hidden, cell]


def _run_svdf(op: Op, tensors: dict[str, Tensor], values: dict[str, Array]) -> list[Array]:
    places = values["time"].shape
    outputs, memory = integer_svdf(op, tensors, values).run(values["data"], values["memory"].reshape(-1, *places))
    return [outputs, memory.reshape(values["memory"].shape)]


def _run_basic(op: Op, tensors: dict[str, Tensor], values: dict[str, Array]) -> list[Array]:
    layer = basic_lstm(tensors, values["weights"], values["bias"])
    shown, cell = layer.step(values["data"], values["hidden"], values["cell"])
    return [shown, shown, cell]


def _lstm_shape(op: Op, s: ShapeContext) -> Shapes:
    data, hidden, cell = s.shape(0), s.shape(1), s.shape(2)
    whole = None if data is None or hidden is None or len(data) != 3 else (*data[:2], hidden[-1])
    return [whole, hidden, cell]


def _svdf_shape(op: Op, s: ShapeContext) -> Shapes:
    data, feature = s.shape(0), s.shape(2)
    known = data is not None and feature is not None and isinstance(feature[0], int)
    return [(data[0], int(feature[0]) // int(op["rank"])) if known and data and feature else None, s.shape(1)]


#: The scale of each gate's sum; another one than 3 integer bits only where a layer normalization stands after.
_SUMS = has(**{f"{gate}_scale": number(2.0**-12) for gate in GATES})


#: Inputs.
_DATA, _MEMORY, _FEATURE, _TIME, _BIAS = range(5)
_WORDS = {_DATA: "data", _MEMORY: "a memory", _FEATURE: "weights over the data", _TIME: "weights over the memory", _BIAS: "a bias"}


def _shape(op: Op, s: ShapeContext) -> Shapes:
    data, memory, feature, time = (s.shape(index) for index in (_DATA, _MEMORY, _FEATURE, _TIME))
    if feature is None or time is None:
        return [None, memory]
    if len(feature) != 2 or len(time) != 2:
        raise failure(op, f"has weights of shape {feature} and {time}, which are not matrices", rule="wrong-rank")
    (filters, inputs), places, rank = feature, time[1], int(op["rank"])
    if not isinstance(filters, int) or not isinstance(places, int) or rank < 1 or filters % rank:
        raise failure(op, f"has {filters} filters of {places} places, which rank {rank} does not divide", rule="shape-mismatch")
    rows = data[0] if data else "rows"
    wanted: dict[int, tuple[Size, ...]] = {
        _DATA: (rows, inputs), _MEMORY: (rows, filters * places), _TIME: (filters, places), _BIAS: (filters // rank,),
    }  # fmt: skip
    for index, shape in wanted.items():
        own = s.shape(index) if s.has(index) else None
        if not is_compatible(own, shape):
            raise failure(op, f"has {_WORDS[index]} of shape {own}, not {shape}", rule="shape-mismatch")
    return [None if data is None else (data[0], filters // rank), memory]


def _run(call: Call) -> list[Array]:
    """One step."""
    time = call.values(_TIME)
    newest = rounded_rows(call.op, call.values(_DATA)) @ call.values(_FEATURE).T
    memory = call.values(_MEMORY)
    kept = np.concatenate([memory.reshape(-1, *time.shape)[..., 1:], newest[..., None]], axis=-1)
    total = (kept * time).sum(axis=-1).reshape(len(kept), -1, int(call["rank"])).sum(axis=-1)
    total = total + call.values(_BIAS) if call.has(_BIAS) else total
    return [apply_activation(total, str(call["activation"])), kept.reshape(memory.shape)]


KINDS = (
    _make_kind(
        "IntegerLSTM",
        LSTM_INPUTS,
        _lstm_problem,
        _run_lstm,
        takes=" ".join(map(_role, LSTM_INPUTS)),
        gives="data data data",
        samples=in_rows(lambda op: {0: 1 if op["time_major"] else 0, 1: 0, 2: 0}),
        products=products_of_rows(*_LSTM_WEIGHTS),
        shape=_lstm_shape,
        types="int8 int8 int16 int8 int8 int8 int8 int8 int8 int32 int32 int32 int8 int8 int32 int16 int16 int16 int8 int32 int16"
        " -> int8 int8 int16",
        attributes=has(
            _SUMS,
            hidden_scale=number(),
            hidden_zero_point=integer(),
            time_major=flag(0),
            cell_clip=number(0.0),
            projection_clip=number(0.0),
        ),
    ),
    _make_kind(
        "IntegerSVDF",
        SVDF_INPUTS,
        _svdf_problem,
        _run_svdf,
        takes="data data weights weights bias?",
        gives="data data",
        samples=in_rows(lambda op: {0: 0, 1: 0}),
        products=products_of_rows(2, 3),
        shape=_svdf_shape,
        types="int8 T int8 T int32 -> int8 T",
        attributes=has(rank=integer(1)),
    ),
    # data, hidden, cell, weights of all gates for data and hidden values, bias -> outputs, next hidden, next cell
    _make_kind(
        "BasicLSTM",
        BASIC_INPUTS,
        _basic_problem,
        _run_basic,
        takes="data data data weights parameter",
        gives="data data data",
        samples=in_rows(lambda op: {0: 0, 1: 0, 2: 0}),
        products=products_of_rows(3),
        shape=lambda op, s: [s.shape(1), s.shape(1), s.shape(2)],
        types="uint8 uint8 int16 uint8 int32 -> uint8 uint8 int16",
    ),
    Kind(
        "SVDF",
        "data data parameter parameter parameter?",
        "data data",
        samples=in_rows(lambda op: {0: 0, 1: 0}),
        bounds=any_value,
        products=products_of_rows(2, 3),
        weights=(2, 3),
        recurs=True,
        shape=_shape,
        evaluate=_run,
        types="any any any any any -> any",
        attributes=has(ACTIVATION, DYNAMIC_ROWS, rank=integer(1)),
    ),
)
