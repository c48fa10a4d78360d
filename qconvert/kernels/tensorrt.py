"""The kernels of TensorRT, by compute capability. Measured with TensorRT-RTX 1.7.1, which shares parser and graph checks with TensorRT
(docs/tensorrt.md, tests/tensorrt_cases.py).

Convolutions and products of int8 on both sides become integer kernels, and data movement keeps the integers. All else is computed in
float32 in generated kernels, with the roundings between; its tolerances are onnxruntime's.
"""

from __future__ import annotations

from dataclasses import replace

from qconvert.graph import Graph, Op
from qconvert.kernels.kernel import Form, Kernel
from qconvert.kernels.onnxruntime import ROWS as _IN_FLOAT
from qconvert.operators import KINDS, kind_of
from qconvert.operators.products import is_product_of_activations

_INT8 = ("int8",)
_GENERATED = "it generates a kernel for each network and device"
#: Kinds whose sums of int8 products become float32 before the bias is added.
_PRODUCTS = tuple(name for name, kind in KINDS.items() if kind.sums_all_weights)
#: Kinds that choose among stored integers where all sides have one quantization.
_CHOOSING = ("Concat", "Max", "Min", "Where", "Resize", "ArgMax", "ArgMin")
#: Kinds without a kernel.
_WITHOUT = ("SpaceToBatch", "BatchToSpace", "SparseToDense", "MatrixSetDiag", "InteriorPad")
#: The rank of data over three dimensions.
_RANK_OF_VOLUMES = 5
#: Kinds that move stored integers.
_MOVING = tuple(name for name, kind in KINDS.items() if kind.rule == "move" and name not in _WITHOUT)


def _product(graph: Graph, op: Op) -> str:
    """Refuse products whose zero points are compensated neither by constants nor by sums next to them."""
    data, other = (graph[name] for name in op.inputs[:2])
    if other.is_constant and not data.is_constant:
        return ""
    points = [tensor.quantization.zero_point.any() for tensor in (data, other) if tensor.quantization is not None]
    return "products of two activations with zero points" if any(points) and not is_product_of_activations(graph, op) else ""


def _choice(graph: Graph, op: Op) -> str:
    """Refuse data of several quantizations, and constants among them."""
    kind = kind_of(op)
    names = [*kind.data(op), *(() if kind.rule == "index" else op.outputs)]
    if any(not graph[name].shares_quantization(graph[names[0]]) for name in names) or op.attributes.get("activation"):
        return "data with several scales"
    return "other interpolation than the nearest" if "mode" in kind.attributes and op["mode"] != "nearest" else _move(graph, op)


def _move(graph: Graph, op: Op) -> str:
    """Refuse constants among the moved data, which TensorRT takes only before Dequantize, and padding other than the integer 0."""
    kind = kind_of(op)
    moved = [graph[name] for name in kind.moved_inputs(op)]
    if any(tensor.is_constant for tensor in moved):
        return "constants among the moved data"
    if kind.has_windows and moved[0].rank == _RANK_OF_VOLUMES:
        return "3-D pools"
    pads, q = "mode" in kind.attributes and op["mode"] == "constant", moved[0].quantization
    return "padding with a zero point" if pads and q is not None and q.zero_point.any() else ""


def _rows(products: tuple[str, ...]) -> tuple[Kernel, ...]:
    """Return the rows of devices whose kernels sum products of some types."""
    floats = tuple(row.as_float_row() for row in _IN_FLOAT)
    tolerances = {kind: next(row.tolerance for row in floats if not row.types and kind in row.kinds) for kind in _PRODUCTS}
    lacks: Form = _product if products else lambda graph, op: "sums of products"
    product = Kernel(types=products or _INT8, real=("sums",), lacks=lacks, unknown=_GENERATED)
    return (
        Kernel(_WITHOUT, runs="nothing"),
        *(replace(product, kinds=(kind,), tolerance=tolerance) for kind, tolerance in tolerances.items()),
        Kernel(_CHOOSING, _INT8, lacks=_choice),
        Kernel(_MOVING, _INT8, lacks=_move),
        *floats,
    )


#: From compute capability 8.9 on.
ROWS = _rows((*_INT8, "float8e4m3fn"))
#: Without 8-bit floats.
SM80 = _rows(_INT8)
#: Without integer kernels that sum products besides.
SM75 = _rows(())
