"""Formulas: on arrays they give what the kind's own evaluation gives, and lowering puts operators that mean the same in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qconvert import Quantization
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Tensor
from qconvert.operators import KINDS
from qconvert.operators.formulas import FORMULAS, Formula, lowers
from qconvert.operators.formulas.along_axes import softmax_along_last
from qconvert.operators.recurrent import CELLS
from qconvert.operators.shapes_and_functions import infer
from qconvert.operators.values import apply
from qconvert.rewriting.lowering import lower
from qconvert.rules.validation import validate

FORMULA = [pytest.param(item, id=item.name) for items in FORMULAS.values() for item in items]

#: Attributes for which formulas of a kind hold, several ways each.
ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "HardSigmoid": [{"alpha": 0.2, "beta": 0.5}, {"alpha": 1 / 6, "beta": 0.4}],
    "Swish": [{"alpha": 1.0}, {"alpha": 1.7}],
    "Gelu": [{"approximate": "none"}, {"approximate": "tanh"}],
    "Elu": [{"alpha": 0.7}],
    "Celu": [{"alpha": 1.0}, {"alpha": 0.3}],
    "Shrink": [{"lambd": 0.5, "bias": 0.0}, {"lambd": 0.4, "bias": 0.7}],
    "Softmax": [{"axis": 1, "beta": 2.5}, {"axis": -2, "beta": 0.5}],
    "LpNormalization": [{"axis": 1, "p": 1}, {"axis": 1, "p": 2}, {"axis": -1, "p": 2}],
    "Hardmax": [{"axis": 1}, {"axis": -1}],
    "CumSum": [{"axis": axis, "reverse": axis % 2} for axis in (0, 1)],
    "CumProd": [{"axis": axis, "exclusive": axis % 2, "reverse": int(axis < 2)} for axis in (0, 1, 2, -1)],
    "LogSoftmax": [{"axis": 1}, {"axis": 0}],
    "LayerNormalization": [{"axis": -1}, {"axis": -2, "epsilon": 1e-3}],
    "RMSNormalization": [{"axis": -1}],
    "InstanceNormalization": [{"data_format": "channels_first"}, {"data_format": "channels_last"}],
    "GroupNormalization": [{"data_format": "channels_first", "num_groups": 2}, {"data_format": "channels_last", "num_groups": 2}],
    "BatchNormalization": [{"data_format": "channels_first"}, {"data_format": "channels_last"}],
    **{
        kind: [
            {"hidden_size": 5},
            {"hidden_size": 5, "direction": "reverse", "layout": 1, "clip": 0.7},
            {
                "hidden_size": 5,
                "direction": "bidirectional",
                "activations": (("Sigmoid",) * 2 + ("Affine",))[-len(cell.activations) :] * 2,
                "activation_alpha": (0.5, 0.4),
                "activation_beta": (0.1, -0.1),
            },
            *[{"hidden_size": 5, "linear_before_reset": 1} for _ in range(kind == "GRU")],
            *[{"hidden_size": 5, "input_forget": 1, "cell_clip": 0.5, "projection_clip": 0.3} for _ in range(kind == "LSTM")],
        ]
        for kind, cell in CELLS.items()
    },
    "Transpose": [{"perm": (2, 3, 0, 1)}, {"perm": (0, 3, 1, 2)}],
    "L2Pool": [
        {"kernel_shape": (2, 2), "strides": (1, 2), "pads": (1, 0, 0, 1), "data_format": "channels_first"},
        {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "auto_pad": "SAME_UPPER", "data_format": "channels_last"},
    ],
    "FakeQuant": [{"min": -1.0, "max": 2.0}, {"min": 0.0, "max": 3.0, "num_bits": 4, "narrow_range": 1}],
    "Einsum": [{"equation": text} for text in ("abcd,ebcf->aef", "...cd,...ed->...ce", "abcd,abce", "abcd->ad", "abcd->dbca")],
    "Concat": [{"axis": 1}],
    "Trilu": [{"upper": 1}, {"upper": 0}],
    "SVDF": [{"rank": 1}, {"rank": 2}],
    "Resize": [
        {"mode": mode, "coordinate_transformation_mode": places, "nearest_mode": nearest, "data_format": layout}
        for mode, places, nearest, layout in (
            ("nearest", "asymmetric", "ceil", "channels_first"),
            ("nearest", "half_pixel_symmetric", "floor", "channels_last"),
            ("nearest", "align_corners", "round_prefer_ceil", "channels_first"),
            ("linear", "half_pixel_symmetric", "floor", "channels_last"),
        )
    ],
    "SpaceToBatch": [{"data_format": "channels_first"}, {"data_format": "channels_last"}],
    "BatchToSpace": [{"data_format": "channels_first"}, {"data_format": "channels_last"}],
    "SpaceToDepth": [{"data_format": layout, "blocksize": 2} for layout in ("channels_first", "channels_last")],
    "DepthToSpace": [
        {"data_format": layout, "blocksize": 2, "mode": mode} for layout in ("channels_first", "channels_last") for mode in ("DCR", "CRD")
    ],
    "InteriorPad": [
        {"low": (0, 1, -1, 2), "high": (1, 0, 2, -2), "interior": (0, 1, 2, 0)},
        {"low": (1, 0, 0, 0), "high": (0, 0, 0, -1), "interior": (0, 0, 0, 0)},
        {"low": (0, 0, 0, 0), "high": (-1, 5, 0, 0), "interior": (2, 3, 0, 0)},
    ],
    "Pad": [{"mode": mode} for mode in ("reflect", "symmetric", "edge", "wrap")],
    "NonMaxSuppression": [{"center_point_box": 1}],
    "DetectionPostProcess": [
        {
            "max_detections": 3,
            "max_classes_per_detection": most,
            "detections_per_class": 2,
            "use_regular_nms": regular,
            "num_classes": 3,
            "nms_score_threshold": 0.2,
            "nms_iou_threshold": 0.4,
            "y_scale": 10.0,
            "x_scale": 8.0,
            "h_scale": 5.0,
            "w_scale": 4.0,
        }
        for most, regular in ((1, 0), (2, 0), (1, 1))
    ],
    "UnsortedSegment": [{"reduction": name} for name in ("sum", "prod", "max", "min")],
    "ReduceWindow": [
        {"function": name, "window": (1, 2, 2, 1), "strides": (1, 1, 1, 2), "dilations": (1, 2, 1, 1)}
        for name in ("add", "mul", "min", "max")
    ],
    "StartGather": [
        {"offset_dims": (0, 2, 3), "collapsed_dims": (1,), "start_index_map": (2, 1), "index_vector_dim": 1, "slice_sizes": (2, 1, 2, 3)},
        {"offset_dims": (2, 3, 4), "collapsed_dims": (3,), "start_index_map": (0,), "index_vector_dim": 2, "slice_sizes": (1, 2, 2, 1)},
    ],
    "DFT": [{"axis": 1, "onesided": 1}, {"axis": -3, "length": 3}, {"axis": 0, "length": 4}, {"axis": 1, "inverse": 1}],
    "STFT": [{"length": 4, "step": 3}, {"length": 5, "step": 2, "onesided": 0}],
    "RoiAlign": [
        {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.8},
        {"output_height": 2, "sampling_ratio": 3, "coordinate_transformation_mode": "output_half_pixel"},
    ],
    "TensorScatter": [{"axis": axis, "mode": mode} for axis in (-2, 3) for mode in ("linear", "circular")],
    **{kind: [{"keepdims": 0}, {"keepdims": 1}] for kind in FORMULAS if kind.startswith("Reduce") and kind != "ReduceWindow"},
}
_SHAPE = (2, 4, 3, 4)


def _operands(kind: str, attributes: dict[str, Any]) -> list[Any]:
    """Data and parameters for an operator of a kind, None for absent ones."""
    rng = np.random.default_rng(len(kind))
    x = rng.normal(0, 2, _SHAPE)
    if kind == "SVDF":
        return [rng.normal(0, 1, shape) for shape in ((2, 3), (2, 20), (4, 3), (4, 5), (4 // attributes["rank"],))]
    if kind in ("SpaceToBatch", "BatchToSpace"):
        return [rng.normal(0, 2, (6, 4, 6, 3)), np.array([2, 3]), np.array([2, 2, 0, 1])]
    if kind in ("SpaceToDepth", "DepthToSpace"):
        return [rng.normal(0, 2, (1, 4, 4, 8))]
    if kind in ("InteriorPad", "ReduceWindow"):
        return [x, np.array(0.5)]
    if kind.startswith("Reduce"):
        return [np.abs(x) if kind == "ReduceLogSum" else x, np.array([1, -1])]
    if kind == "LayerNormalization":
        shape = _SHAPE[attributes["axis"] :]
        return [x, rng.normal(1, 0.2, shape), rng.normal(0, 1, shape)]
    if kind == "RMSNormalization":
        return [x, rng.normal(1, 0.2, _SHAPE[-1:])]
    if kind in ("InstanceNormalization", "GroupNormalization"):
        return [x, rng.normal(1, 0.2, 4), rng.normal(0, 1, 4)]
    if kind == "BatchNormalization":
        return [x, *rng.normal(1, 0.2, (3, 4)), rng.uniform(0.5, 2, 4)]
    if kind == "BitwiseNot":
        return [np.round(x * 9).astype(np.int32)]
    if kind == "Xor":
        return [x > 0, rng.normal(0, 1, _SHAPE) > 0]
    if kind == "Pow":
        return [x, np.array(3.0)]
    if kind == "Where":
        return [x > 0, *(np.round(rng.normal(0, 9, _SHAPE)).astype(np.int32) for _ in "xy")]
    if kind == "Pad":
        return [x, np.array([1, 2, 0, 1, 0, 3, 0, 2])]
    if kind == "Tile":
        return [x, np.array([1, 2, 1, 23])]
    if kind == "Resize":
        return [x, np.array([5, 7])]
    if kind == "Slice":
        return [x, *np.array([[0, 9], [2**62, 0], [0, 1], [1, -2]])]
    if kind == "Concat":
        return [x * factor for factor in range(21)]
    if kind in ("IsNaN", "IsInf"):
        x[0, 0], x[0, 1] = np.nan, -np.inf
        return [x]
    if kind == "NotEqual":
        return [np.round(x), np.round(rng.normal(0, 2, _SHAPE))]
    if kind in ("Rsqrt", "Reciprocal"):
        return [np.abs(x) + 0.1]
    if kind == "Sum":
        return [x, x * 2, x - 1]
    if kind in ("Real", "Imag", "ComplexAbs"):
        return [x[..., :2]]
    if kind == "Einsum":
        second = {"abcd,ebcf->aef": (5, 4, 3, 2), "...cd,...ed->...ce": (2, 4, 6, 4), "abcd,abce": (2, 4, 3, 5)}
        shape = second.get(attributes["equation"])
        return [x] if shape is None else [x, rng.normal(0, 1, shape)]
    if kind == "DFT":
        return [x[..., :2] if attributes.get("inverse") or attributes["axis"] < 0 else x[..., :1]]
    if kind == "STFT":
        return [x.reshape(4, 24), rng.uniform(0, 1, attributes["length"])]
    if kind == "RoiAlign":
        return [x, np.array([[0.0, 0, 3, 3], [1.2, 0.5, 9, 5.5], [-3, 2, 2, 4]]), np.array([0, 1, 1])]
    if kind in ("SelectBoxes", "NonMaxSuppression"):
        boxes, scores, limits = rng.uniform(0, 4, (20, 4)), rng.uniform(0, 1, 20), [np.array(6), np.array(0.25), np.array(0.2)]
        return [boxes, scores, *limits] if kind == "SelectBoxes" else [boxes[None], scores.reshape(1, 1, 20), *limits]
    if kind == "DetectionPostProcess":
        return [rng.normal(0, 2, (1, 20, 4)), rng.uniform(0, 1, (1, 20, 4)), rng.uniform(0.5, 3, (20, 4))]
    if kind == "Bucketize":
        return [x, np.array([-2.0, -0.5, 1.0, 2.5])]
    if kind == "Rfft2d":
        return [x, np.array([5, 3])]
    if kind == "BroadcastArgs":
        return [np.array([3, 1, 5]), np.array([4, 1])]
    if kind == "Atan2":
        signs = np.array([0.0, 1, -0.0, -1])
        return [x * signs, rng.normal(0, 2, _SHAPE) * signs[::-1, None, None]]
    if kind == "SegmentSum":
        return [x, np.array([1, 3])]
    if kind == "UnsortedSegment":
        return [x, np.array([[2, 0, -1, 2], [1, 1, 0, 0]]), np.array(4)]
    if kind == "DynamicUpdateSlice":
        return [x, rng.normal(0, 1, (1, 2, 3, 4)), np.array([1, 7, -1, 0])]
    if kind == "TensorScatter":
        start = 2 if attributes["mode"] == "circular" else 1
        return [x, rng.normal(0, 1, (2, 4, 2, 4)), np.array([start, 0])] if attributes["axis"] == -2 else [x[:1], x[1:, :, :, :2]]
    if kind == "SparseToDense":
        return [np.array([[0, 1], [2, 2]]), np.array([3, 4]), rng.normal(0, 1, 2), np.array(0.5)]
    if kind == "MatrixSetDiag":
        return [x, rng.normal(0, 1, (2, 4, 3))]
    if kind == "StartGather":
        return [x, np.array([[1, 9], [0, 2], [-1, 1]]) if attributes["index_vector_dim"] == 1 else np.array([[0, 1, 5]])]
    if kind in CELLS:
        ways, rows = 2 if attributes.get("direction") == "bidirectional" else 1, CELLS[kind].gates * 5
        width = 4 if attributes.get("projection_clip") else 5
        found = [rng.normal(0, 1, (3, 2, 3)), rng.normal(0, 0.7, (ways, rows, 3)), rng.normal(0, 0.7, (ways, rows, width)),
                 rng.normal(0, 0.5, (ways, 2 * rows))]  # fmt: skip
        if attributes.get("projection_clip"):  # an LSTM of TFLite, with all that it may have
            shapes = ((ways, 2, width), (ways, 2, 5), (ways, 15), (ways, width, 5), (ways, width), (ways, rows))
            found += [None, *(rng.normal(0, 1, shape) for shape in shapes)]
        return found
    pairs = KINDS[kind].inputs[0] == 2
    return [x, rng.normal(0, 2, _SHAPE) if kind != "PRelu" else rng.normal(0, 1, (4, 1, 1))] if pairs else [x]


@pytest.mark.parametrize("formula", FORMULA)
def test_a_formula_on_arrays_is_the_evaluation_of_its_kind(formula: Formula) -> None:
    held = 0
    for attributes in ATTRIBUTES.get(formula.kind, [{}]):
        operands = _operands(formula.kind, attributes)
        op = Op(formula.kind, tuple("" if item is None else "x" * (i + 1) for i, item in enumerate(operands)), ("y",), attributes)
        taken = formula.attributes(op)
        found = None if taken is None else formula.function(*operands, **taken)
        if found is not None:
            held += 1
            found = found[0] if isinstance(found, tuple) else found
            within = 2e-7 if formula.name == "erf_by_exponential" else 1e-9
            np.testing.assert_allclose(found, apply(formula.kind, *operands, **attributes), rtol=within, atol=within)
    assert held


def _graph(kind: str, attributes: dict[str, Any], quantization: Quantization | None) -> tuple[Graph, dict[str, Array]]:
    """A graph of one operator, and its inputs."""
    operands = _operands(kind, attributes)
    tensors, feed = [], {}
    for place, operand in enumerate(operands):
        if operand is None:
            continue
        role = "" if kind == "Pow" and place else KINDS[kind].role(place)  # a formula holds for known exponents
        real = operand.astype(np.float32) if operand.dtype.kind == "f" else operand
        name = f"input_{place}"
        if role in ("data", "factor") and quantization is not None and real.dtype.kind == "f":
            data = np.clip(np.round(np.nan_to_num(real, posinf=9, neginf=-9) / 0.05) + 3, -128, 127).astype(np.int8)
            tensors.append(Tensor(name, "int8", data.shape, None, quantization))
            feed[name] = data
        elif role in ("data", "factor"):
            tensors.append(Tensor(name, str(real.dtype), real.shape))
            feed[name] = real
        else:
            tensors.append(Tensor(name, str(real.dtype), real.shape, real))
    kept = "int64" if kind in ("Rank", "BroadcastArgs", "NonMaxSuppression") else KINDS[kind].result_type
    kept = "int32" if kind in ("BitwiseNot", "Where") else kept
    result = (
        Tensor("y", "int8", None, None, Quantization.per_tensor(0.06, -5))
        if quantization is not None and not kept
        else Tensor("y", kept or "float32", None)
    )
    names = tuple("" if operand is None else f"input_{place}" for place, operand in enumerate(operands))
    stated = KINDS[kind].types.partition("->")[2].split()
    others = [f"y_{place}" for place in range(1, KINDS[kind].outputs[0] if kind not in CELLS else 1)]
    tensors += [result, *(Tensor(name, dtype, None) for name, dtype in zip(others, stated[1:] or ["float32"] * 3, strict=False))]
    op = Op(kind, names, ("y", *others), attributes, "layer")
    return infer(Graph("g", {item.name: item for item in tensors}, (op,), tuple(feed), ("y",))), feed


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("kind", sorted(FORMULAS))
def test_what_is_lowered_computes_the_same(kind: str, quantized: bool) -> None:
    has_quantization = quantized and KINDS[kind].rule == "real"
    quantization = Quantization.per_tensor(0.05, 3) if has_quantization else None
    for attributes in ATTRIBUTES.get(kind, [{}]):
        graph, feed = _graph(kind, attributes, quantization)
        before = graph.ops[0]
        found = lower(graph, lambda tensors, op, before=before: "not here" if op == before else "")
        assert found.graph.ops != graph.ops
        assert {id(whole) for whole in found.whole.values()} == {id(before)}
        assert found.graph.producers().keys() >= {*before.outputs} and found.graph["y"] == graph["y"]
        validate(found.graph)
        wanted, got = evaluate(graph, feed)["y"], evaluate(found.graph, feed)["y"]
        if (
            kind in ("Mod", "FloorMod", "FloorDiv", "Round", "Shrink") and has_quantization
        ):  # jumps, at multiples of a step that float32 may miss
            assert (np.abs(wanted.astype(int) - got.astype(int)) > 1).mean() < 0.05
        elif wanted.dtype.kind in "ib":
            assert np.abs(wanted.astype(int) - got.astype(int)).max() <= (1 if quantized else 0)
        else:
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_quotients_of_integers_are_rounded_down(dtype: str) -> None:
    x = np.array([7, -7, 7, -7, 6, -6, 0, np.iinfo(dtype).min], dtype)
    y = np.array([2, 2, -2, -2, 3, 3, -5, 1], dtype)
    tensors = {name: Tensor(name, dtype, x.shape) for name in "xyz"}
    graph = Graph("g", tensors, (Op("FloorDiv", ("x", "y"), ("z",)),), ("x", "y"), ("z",))
    found = lower(graph, lambda tensors, op: "no" if op.kind == "FloorDiv" else "").graph
    assert found.ops != graph.ops
    assert evaluate(found, {"x": x, "y": y})["z"].tolist() == (x // y).tolist()


def test_data_movement_keeps_integers() -> None:
    """Softmax along another axis than the last one stays an operator on integers, between two movements of integers."""
    quantization = Quantization.per_tensor(0.05, 3)
    graph, _ = _graph("Softmax", {"axis": 1}, quantization)
    found = lower(graph, lambda tensors, op: "its axis is not the last one" if op.kind == "Softmax" and op["axis"] != -1 else "").graph
    assert [op.kind for op in found.ops] == ["Transpose", "Softmax", "Transpose"]
    assert found[found.ops[1].inputs[0]].quantization == quantization
    assert found[found.ops[1].outputs[0]].quantization == graph["y"].quantization
    assert {found[name].dtype for op in found.ops for name in op.outputs} == {"int8"}


def test_scales_along_an_axis_follow_it() -> None:
    """Weights of an LSTM, (directions, rows, columns) with a scale a row, become matrices with a scale a row.

    Both results have the last hidden values, each with its own scale.
    """
    rng, size = np.random.default_rng(0), 4
    scales = np.linspace(0.01, 0.02, 4 * size)
    weights = [
        Tensor(name, "int8", shape, rng.integers(-100, 100, shape).astype(np.int8), Quantization.per_axis(scales, 1))
        for name, shape in (("w", (1, 4 * size, 3)), ("r", (1, 4 * size, size)))
    ]
    data = Tensor("x", "int8", (5, 2, 3), None, Quantization.per_tensor(0.02, 3))
    results = [Tensor(name, "int8", None, None, Quantization.per_tensor(scale, 0)) for name, scale in (("y", 2**-7), ("h", 2**-8))]
    op = Op("LSTM", ("x", "w", "r"), ("y", "h"), {"hidden_size": size})
    graph = infer(Graph("g", {item.name: item for item in (data, *weights, *results)}, (op,), ("x",), op.outputs))
    found = lower(graph, lambda tensors, op: "no" if op.kind == "LSTM" else "").graph
    validate(found)
    feed = {"x": rng.integers(-128, 128, (5, 2, 3)).astype(np.int8)}
    after, before = evaluate(found, feed), evaluate(graph, feed)
    assert all(np.array_equal(after[name], before[name]) for name in op.outputs)
    assert {found[op.inputs[1]].quantization.axis for op in found.ops if op.kind == "Gemm"} == {0}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shape", "kinds"), [((2, 2, 2, 3), "Dequantize Reshape Transpose Reshape Quantize"), ((2, 2, 1, 3), "Reshape Transpose Reshape")]
)
def test_what_loses_the_axis_of_its_scales_is_moved_in_float(shape: tuple[int, ...], kinds: str) -> None:
    """The axis with scales is joined with the one before it, unless that has one element."""
    shape = (*shape, 2, 2)
    quantization = Quantization.per_axis(np.linspace(0.01, 0.02, 3), 3)
    tensors = {name: Tensor(name, "int8", size, None, quantization) for name, size in (("x", shape), ("y", None))}
    graph = infer(Graph("g", tensors, (Op("Transpose", ("x",), ("y",), {"perm": (4, 5, 2, 3, 0, 1)}),), ("x",), ("y",)))
    found = lower(graph, lambda tensors, op: "no" if op.kind == "Transpose" and len(op["perm"]) > 5 else "").graph
    validate(found)
    assert " ".join(op.kind for op in found.ops) == kinds
    feed = {"x": np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)}
    assert np.array_equal(evaluate(found, feed)["y"], evaluate(graph, feed)["y"])


def test_an_activation_follows_the_formula() -> None:
    window = {"kernel_shape": (2, 2), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_first"}
    graph, feed = _graph("L2Pool", {**window, "activation": "relu_n1_to_1"}, None)
    found = lower(graph, lambda tensors, op: "no" if op.kind == "L2Pool" else "").graph
    assert found.ops[-1].kind == "Clip"
    np.testing.assert_allclose(evaluate(found, feed)["y"], evaluate(graph, feed)["y"], rtol=1e-5)


def test_no_kind_is_lowered_by_way_of_itself() -> None:
    """Erf by a Gelu that is computed by an Erf would be 1 off near 0."""
    graph, _ = _graph("Erf", {}, None)
    found = lower(graph, lambda tensors, op: "no" if op.kind in ("Erf", "Gelu") else "").graph
    assert "Equal" not in {op.kind for op in found.ops}
    np.testing.assert_allclose(evaluate(found, {"input_0": np.full(graph["input_0"].shape, 1e-30, np.float32)})["y"], 0, atol=3e-7)


def test_what_helps_in_no_way_stays() -> None:
    graph, _ = _graph("Mish", {}, None)
    assert lower(graph, lambda tensors, op: "no" if op.kind in ("Mish", "Tanh") else "").graph is graph


def test_the_format_says_which_formula_it_prefers() -> None:
    graph, _ = _graph("Softmax", {"axis": 1, "beta": 2.0}, None)
    legal = lambda tensors, op: "no" if op.kind == "Softmax" and (op["beta"] != 1 or op["axis"] != -1) else ""  # noqa: E731
    kinds = [op.kind for op in lower(graph, legal).graph.ops]
    turned = [op.kind for op in lower(graph, legal, prefers=(softmax_along_last,)).graph.ops]
    assert kinds == ["Mul", "Transpose", "Softmax", "Transpose"]
    assert turned == ["Transpose", "Mul", "Softmax", "Transpose"]


def test_a_caller_has_formulas_of_its_own() -> None:
    own = lowers("Softmax")(lambda x, *, axis, beta: apply("Hardmax", x * beta, axis=axis))
    graph, _ = _graph("Softmax", {"axis": -1, "beta": 2.0}, None)
    legal = lambda tensors, op: "no" if op.kind == "Softmax" else ""  # noqa: E731
    assert [op.kind for op in lower(graph, legal, prefers=(own,)).graph.ops] == ["Mul", "Hardmax"]
    assert own not in FORMULAS["Softmax"] and not any(lower(graph, legal).graph.of_kind("Hardmax"))


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_log_of_sums_of_infinite_numbers_is_one(keepdims: int) -> None:
    """A largest number less itself is no number where it is infinite."""
    x = np.array([[-np.inf, -np.inf], [-np.inf, 1.0], [0.0, np.inf]], np.float32)
    tensors = {"x": Tensor("x", "float32", x.shape), "a": Tensor("a", "int64", (1,), np.array([1])), "y": Tensor("y", "float32", None)}
    graph = infer(Graph("g", tensors, (Op("ReduceLogSumExp", ("x", "a"), ("y",), {"keepdims": keepdims}),), ("x",), ("y",)))
    lowered = lower(graph, lambda tensors, op: "no" if op.kind == "ReduceLogSumExp" else "").graph
    assert lowered is not graph
    for found in (evaluate(graph, {"x": x})["y"], evaluate(lowered, {"x": x})["y"]):
        assert found.reshape(-1).tolist() == [-np.inf, 1.0, np.inf]


def test_a_vector_of_zeros_in_float16_has_no_nan() -> None:
    x = np.array([[0.0, 0.0], [0.0, 1e-6], [3.0, 4.0]], np.float16)
    tensors = {"x": Tensor("x", "float16", x.shape), "y": Tensor("y", "float16", x.shape)}
    graph = Graph("g", tensors, (Op("LpNormalization", ("x",), ("y",), {"axis": 1, "p": 1}),), ("x",), ("y",))
    lowered = lower(graph, lambda tensors, op: "no" if op.kind == "LpNormalization" else "").graph
    assert evaluate(lowered, {"x": x})["y"].tolist() == evaluate(graph, {"x": x})["y"].tolist()


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), ("batch", 4, 3, 5), (2, 4, "height", 5), (2, 4, 3, 5, 2)])
def test_group_normalization_is_computed_in_four_axes(shape: tuple[int | str, ...]) -> None:
    """TensorFlow Lite before 2.15 ends the process where a SQUARED_DIFFERENCE broadcasts more than 4 axes."""
    tensors = {name: Tensor(name, "float32", (4,), np.ones(4, np.float32)) for name in "sb"}
    op = Op("GroupNormalization", ("x", "s", "b"), ("y",), {"num_groups": 2, "epsilon": 1e-5, "data_format": "channels_first"})
    graph = infer(Graph("g", {"x": Tensor("x", "float32", shape), "y": Tensor("y", "float32", shape), **tensors}, (op,), ("x",), ("y",)))
    lowered = lower(graph, lambda _, op: "no" if op.kind == "GroupNormalization" else "").graph
    ranks = [len(lowered[name].shape or ()) for op in lowered.of_kind("SquaredDifference", "ReduceMean") for name in op.outputs]
    assert len(ranks) == 3 and max(ranks) == 4
    x = np.random.default_rng(0).normal(0, 2, [size if isinstance(size, int) else 3 for size in shape]).astype(np.float32)
    np.testing.assert_allclose(evaluate(lowered, {"x": x})["y"], evaluate(graph, {"x": x})["y"], atol=2e-6)
