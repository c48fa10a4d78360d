"""BasicLSTM: TFLite's LSTM of uint8 data with an int16 cell, one step, with its kernel's arithmetic (arithmetic/recurrent_kernels.py)."""

from __future__ import annotations

from qconvert.arithmetic import BASIC_GATES, BasicLstm
from qconvert.arithmetic.storage import Array
from qconvert.graph.schema import Op, Tensor
from qconvert.operators.call import Call
from qconvert.operators.integer_recurrent import name_tensors
from qconvert.operators.kind import Broken, kind
from qconvert.operators.products import products_of_rows
from qconvert.operators.properties import in_rows
from qconvert.operators.sizes import ShapeContext, Shapes

__all__ = ["BASIC_INPUTS", "KINDS", "basic_lstm"]

#: What each input is.
BASIC_INPUTS = ("data", "hidden", "cell", "weights", "bias")

_CELL_SCALE = 2.0**-11


def _basic_problem(tensors: dict[str, Tensor]) -> Broken | None:
    """Return the rule that the tensors, by the names in BASIC_INPUTS, break, and the reason; None if their kernel takes them."""
    for name in ("weights", "bias", "cell"):
        q = tensors[name].quantization
        if q is None or not q.is_per_tensor:
            return "not-per-tensor", f"has {tensors[name].name!r} without one scale"
    if _scale(tensors["cell"]) != _CELL_SCALE:
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


def _scale(tensor: Tensor) -> float:
    assert tensor.quantization is not None
    return float(tensor.quantization.scale[0])


def basic_lstm(tensors: dict[str, Tensor], weights: Array, bias: Array) -> BasicLstm:
    """The layer that a BasicLSTM is."""
    assert tensors["weights"].quantization is not None
    return BasicLstm(weights, int(tensors["weights"].quantization.zero_point[0]), bias, _scale(tensors["bias"]))


def _run(call: Call) -> list[Array]:
    tensors = {name: tensor for name, tensor in zip(BASIC_INPUTS, call.tensors, strict=False) if tensor is not None}
    if problem := _basic_problem(tensors):
        raise ValueError(problem[1])
    data, hidden, cell, weights, bias = (call.raw(index) for index in range(len(BASIC_INPUTS)))
    shown, cell = basic_lstm(tensors, weights, bias).step(data, hidden, cell)
    return [shown, shown, cell]


def _shape(op: Op, s: ShapeContext) -> Shapes:
    return [s.shape(1), s.shape(1), s.shape(2)]


KINDS = (
    # data, hidden, cell, weights of all gates for data and hidden values, bias -> outputs, next hidden, next cell
    kind(
        "BasicLSTM",
        "data data data weights parameter",
        "data data data",
        samples=in_rows(lambda op: {0: 0, 1: 0, 2: 0}),
        products=products_of_rows(3),
        recurs=True,
        shape=_shape,
        tensor_rule=lambda op, find: _basic_problem(name_tensors(op, BASIC_INPUTS, find)),
        rule="stored",
        evaluate=_run,
        types="uint8 uint8 int16 uint8 int32 -> uint8 uint8 int16",
    ),
)
