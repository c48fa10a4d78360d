"""Operators of a float network that MNN 3.6.1 computes wrongly or whose conversion ends its converter, and other forms of them.

Found by random operators in MNN (qconvert/conformance) and confirmed with single ONNX nodes (docs/measured/mnn.md).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping

from qconvert.graph import Graph, Op, Tensor
from qconvert.operators import kind_of
from qconvert.operators.recurrent import CELLS, cell_of, resets_before_product
from qconvert.operators.space import nearest_indices
from qconvert.plugins import operators
from qconvert.rewriting.lowering import legality, lower, lower_op

#: Further inputs of recurrences that MNN takes: weights, bias and first states.
_RECURRENT_INPUTS = (0, 1, 2, 3, 5, 6)
#: Attributes of recurrences for which MNN needs other values than their defaults, and which.
_NEEDED = {"hidden_size": None, "direction": ("forward", "bidirectional"), "linear_before_reset": (1,)}
#: (tensors, operator) -> what is wrong with it, in words; "" if nothing is.
_Fault = Callable[[Mapping[str, Tensor], Op], str]


def fault_of(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Return what is wrong with an operator in MNN, in words; "" if nothing is known."""
    find = _FAULTS.get(op.kind)
    return "" if find is None else find(tensors, op)


def _always(reason: str) -> _Fault:
    return lambda tensors, op: reason


def _of_floats(find: _Fault) -> _Fault:
    """The fault of a comparison, which MNN has of float values alone."""

    def fault(tensors: Mapping[str, Tensor], op: Op) -> str:
        sides = [tensors[name] for name in op.inputs]
        return find(tensors, op) if all(side.is_quantized or "float" in side.dtype for side in sides) else ""

    return fault


def _broadcast_fault(tensors: Mapping[str, Tensor], op: Op) -> str:
    shape, shapes = tensors[op.outputs[0]].static_shape, [tensors[name].static_shape for name in op.inputs]
    whole = None in (shape, *shapes) or any(other == shape for other in shapes)
    return "" if whole else "MNN compares float values wrongly where both operands are broadcast"


def _sum_fault(tensors: Mapping[str, Tensor], op: Op) -> str:
    """A float sum along an axis may have the integers of an int8 layer as data."""
    data = tensors[op.inputs[0]]
    is_wrong = not op["exclusive"] and (data.is_quantized or "float" in data.dtype)
    return "MNN loses the first element of a sum of the results of an int8 layer" if is_wrong else ""


def _resize_fault(tensors: Mapping[str, Tensor], op: Op) -> str:
    coordinates, nearest_mode = str(op["coordinate_transformation_mode"]), str(op["nearest_mode"])
    if coordinates == "half_pixel_symmetric":
        return "MNN places the points of half_pixel_symmetric otherwise"
    if op["mode"] != "nearest" or nearest_mode not in ("ceil", "round_prefer_ceil"):
        return ""
    shapes = [tensors[name].static_shape for name in (op.inputs[0], op.outputs[0])]
    if nearest_mode == "round_prefer_ceil" and shapes[0] is not None and shapes[1] is not None:
        sizes = [(size, wanted) for size, wanted in zip(*shapes, strict=True) if size != wanted]
        above, below = (
            [nearest_indices(*pair, coordinates, mode).tolist() for pair in sizes] for mode in (nearest_mode, "round_prefer_floor")
        )
        if above == below:
            return ""
    return f"MNN takes other elements than those of nearest_mode {nearest_mode}"


def _recurrence_fault(tensors: Mapping[str, Tensor], op: Op) -> str:
    if resets_before_product(op):
        return "MNN multiplies by the reset gate after the product of the hidden values"
    known = {name: item.default for name, item in kind_of(op).attributes.items()}
    for name, default in known.items():
        allowed = _NEEDED.get(name, (default,))
        if allowed is not None and op[name] not in allowed:
            return f"MNN ignores {name} {op[name]!r}"
    if any(name and place not in _RECURRENT_INPUTS for place, name in enumerate(op.inputs)):
        return "MNN ignores lengths of sequences, peepholes and projections"
    count = cell_of(op).states
    needed = op.outputs[:1] if count == 1 else op.outputs[1:3]
    return "" if len(needed) == count and all(needed) else "MNN needs results that are not used"


_NOT_COMBINED = "MNN puts rows at places, and neither adds nor compares them with what is there"
_FAULTS: Mapping[str, _Fault] = {
    "Shrink": _always("MNN's converter makes a Less of float values of it, and is wrong for negative ones"),
    "Round": _always("MNN rounds halves away from zero"),
    "Unique": _always("MNN sorts the values, and gives wrong indices for values in the order of the data"),
    **dict.fromkeys(("SegmentSum", "UnsortedSegment"), _always(_NOT_COMBINED)),
    **dict.fromkeys(("ScatterND", "ScatterElements"), lambda tensors, op: "" if op["reduction"] == "none" else _NOT_COMBINED),
    "Equal": _of_floats(_always("MNN compares the bits of float values, and is wrong for 0 and -0")),
    "Less": _of_floats(_always("MNN compares the bits of float values as integers, and is wrong where both are negative")),
    **dict.fromkeys(("LessOrEqual", "Greater", "GreaterOrEqual"), _of_floats(_broadcast_fault)),
    "CumSum": _sum_fault,
    "Resize": _resize_fault,
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
        _always("MNN's converter reduces all axes where these are an input, as from opset 18 on"),
    ),
    **dict.fromkeys(CELLS, _recurrence_fault),
}


def _legal(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Return why an operator gets another form: it has a fault, or ONNX's form of it has operators with one."""
    if fault := fault_of(tensors, op):
        return fault
    in_onnx = legality(operators("onnx", "write"), _OPSET)
    reason = in_onnx(tensors, op)
    found = lower_op(tensors, op, in_onnx) if reason else None
    if found is None:
        return ""
    around: ChainMap[str, Tensor] = ChainMap(dict(found.tensors), tensors)  # type: ignore[arg-type]  # which is only read
    return reason if any(fault_of(around, part) for part in found.ops) else ""


def lower_faults(network: Graph) -> Graph:
    """Return a float network with other forms of the operators that MNN computes wrongly; those without one stay."""
    return lower(network, _legal).graph


def unmet_fault(tensors: Mapping[str, Tensor], op: Op) -> str:
    """Return the fault of an operator of which no other form is known; "" otherwise."""
    fault = fault_of(tensors, op)
    return fault if fault and lower_op(tensors, op, _legal) is None else ""


#: Of the ONNX files that MNN's converter gets.
_OPSET = 17
