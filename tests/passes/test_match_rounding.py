"""Functions of one tensor of 8 bits by default and with numerics "strict": LiteRT's integers for every code, in onnxruntime and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflite_models import TensorSpec, run_litert, single_op

from qconvert import convert, load, prove, save
from qconvert.arithmetic import onnxruntime_softmax, softmax_steps
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_KERNELS
from qconvert.kernels import KERNELS
from qconvert.passes.match_rounding import match_rounding
from qconvert.plugins import ModelFile, kernels_named, target_named

#: Operator -> its options, and the scale and zero point of its result where the kernel fixes them.
FUNCTIONS: dict[str, tuple[Any, tuple[float, int] | None]] = {
    "HARD_SWISH": ({}, None),
    "LEAKY_RELU": ({"alpha": 0.3}, None),
    "LOGISTIC": (None, (1 / 256, -128)),
    "TANH": (None, (1 / 128, 0)),
    "QUANTIZE": (None, None),
}
CODES = np.arange(-128, 128, dtype=np.int8).reshape(1, 256)


def ran(path: Path, kernels: str) -> np.ndarray:
    runtime, name = kernels_named(kernels)
    model = runtime.open(ModelFile(path, name))
    (found,) = model.run(dict.fromkeys(model.inputs, CODES)).values()
    return found


@pytest.mark.litert
@pytest.mark.parametrize(
    "kernels",
    [pytest.param("onnxruntime:optimized", marks=pytest.mark.onnxruntime), pytest.param("torch:rebuilt", marks=pytest.mark.torch)],
)
@pytest.mark.parametrize("builtin", FUNCTIONS)
def test_strict_gives_the_sources_integers_for_every_code(builtin: str, kernels: str, tmp_path: Path) -> None:
    options, fixed = FUNCTIONS[builtin]
    suffix = ".onnx" if kernels.startswith("onnx") else ".pt2"
    differing = {"fast": 0, "exact": 0, "strict": 0}
    for number, rng in enumerate(map(np.random.default_rng, range(4, 14))):
        scale, point = fixed or (float(np.float32(np.exp(rng.uniform(-4, -2.5)))), int(rng.integers(-100, 0)))
        given = TensorSpec("x", (1, 256), "int8", float(np.float32(np.exp(rng.uniform(-4, -2)))), int(rng.integers(-60, 60)))
        content = single_op(builtin, options, [given], [TensorSpec("y", (1, 256), "int8", scale, point)])
        source = tmp_path / f"{number}.tflite"
        source.write_bytes(content)
        (wanted,) = run_litert(content, [CODES])
        for numerics in differing:
            path = tmp_path / f"{number}_{numerics}{suffix}"
            convert(source, path, numerics=numerics)
            differing[numerics] += int((ran(path, kernels) != wanted).sum())
    assert differing["strict"] == 0
    assert (differing["fast"] > 0) == (
        builtin in ("HARD_SWISH", "LEAKY_RELU", "QUANTIZE")
    )  # the plain form is another function of some codes
    assert differing["exact"] <= (1 if builtin == "HARD_SWISH" else 0)  # of 2,560: a search finds no form for every HARD_SWISH


@pytest.mark.litert
@pytest.mark.parametrize("suffix", [".onnx", pytest.param(".pt2", marks=pytest.mark.torch)])
@pytest.mark.parametrize(("builtin", "kind"), [("QUANTIZE", "Requantize"), ("LEAKY_RELU", "LeakyRelu"), ("HARD_SWISH", "HardSwish")])
def test_a_form_is_read_back_as_the_operator_that_it_was(builtin: str, kind: str, suffix: str, tmp_path: Path) -> None:
    options, _ = FUNCTIONS[builtin]
    given, result = TensorSpec("x", (1, 256), "int8", 0.035, -15), TensorSpec("y", (1, 256), "int8", 0.02, -110)
    source, path, back = tmp_path / "source.tflite", tmp_path / f"result{suffix}", tmp_path / "back.tflite"
    source.write_bytes(single_op(builtin, options, [given], [result]))
    convert(source, path)
    graph = load(path)
    (op,) = [op for op in graph.ops if op.attributes.get("arithmetic")]
    assert (op.kind, op["arithmetic"]) == (kind, "tflite_hard_swish" if kind == "HardSwish" else "xnnpack_line")
    if suffix == ".onnx":  # which had no HardSwish before opset 14
        convert(source, path, opset=13, force=True)
        assert [(o.kind, o["arithmetic"]) for o in load(path).ops if o.attributes.get("arithmetic")] == [(kind, op["arithmetic"])]
    convert(path, back)
    kinds = [op.kind for op in load(back).ops]
    assert kinds.count(kind) == 1 and "Reinterpret" not in kinds
    assert np.array_equal(run_litert(back.read_bytes(), [CODES])[0], run_litert(source.read_bytes(), [CODES])[0])


@pytest.mark.litert
@pytest.mark.parametrize("builtin", FUNCTIONS)
def test_evaluation_with_the_kernels_of_a_runtime(builtin: str, tmp_path: Path) -> None:
    options, fixed = FUNCTIONS[builtin]
    scale, point = fixed or (0.03, -20)
    content = single_op(builtin, options, [TensorSpec("x", (1, 256), "int8", 0.045, 7)], [TensorSpec("y", (1, 256), "int8", scale, point)])
    (tmp_path / "m.tflite").write_bytes(content)
    found = evaluate(load(tmp_path / "m.tflite"), {"x": CODES}, kernels=KERNELS["litert:default"].compute_stored)
    assert np.array_equal(found["y"], run_litert(content, [CODES])[0])


@pytest.mark.litert
@pytest.mark.parametrize("suffix", [pytest.param(".onnx", marks=pytest.mark.onnxruntime), pytest.param(".pt2", marks=pytest.mark.torch)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("sizes", "places"),
    [
        ((10, 12), {"halfPixelCenters": True}), ((20, 12), {"halfPixelCenters": True}), ((40, 48), {"halfPixelCenters": True}),
        ((40, 24), {}), ((33, 11), {"alignCorners": True}),
    ],
)  # fmt: skip
def test_interpolations_take_ties_up_as_xnnpack_does(
    sizes: tuple[int, int], places: dict[str, bool], dtype: str, suffix: str, tmp_path: Path
) -> None:
    rng, source, path = np.random.default_rng(sum(sizes)), tmp_path / "source.tflite", tmp_path / f"result{suffix}"
    low, high = (-128, 127) if dtype == "int8" else (0, 255)
    shape, options = (1, 5, 6, 3), {"halfPixelCenters": False, "alignCorners": False, **places}
    specs = [
        TensorSpec("x", shape, dtype, 0.05, low + 77),
        TensorSpec("sizes", (2,), "int32", data=np.array(sizes, np.int32)),
        TensorSpec("y", (1, *sizes, 3), dtype, 0.05, low + 77),
    ]
    source.write_bytes(single_op("RESIZE_BILINEAR", options, specs[:2], specs[2:]))
    differing = {}
    for numerics in ("fast", "exact"):
        convert(source, path, numerics=numerics, force=True)
        runtime, name = kernels_named("onnxruntime:optimized" if suffix == ".onnx" else "torch:rebuilt")
        model = runtime.open(ModelFile(path, name))
        (wanted_dtype,) = (dtype for dtype, _ in model.inputs.values())
        x = rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype)
        offset = (int(wanted_dtype == "uint8") - int(dtype == "uint8")) * 128
        (found,) = model.run(dict.fromkeys(model.inputs, (x.astype(np.int64) + offset).astype(wanted_dtype))).values()
        (wanted,) = run_litert(source.read_bytes(), [x])
        differing[numerics] = int((found.astype(np.int64) - (0 if found.dtype.name == dtype else offset) != wanted).sum())
    assert differing["exact"] == 0 and differing["fast"] > 0
    (op,) = [op for op in load(path).ops if op.kind == "Resize"]
    assert op["arithmetic"] == "ties_up"


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    ("shape", "sizes", "nodes"),
    [
        ((1, 33, 33, 4), (513, 513), {"MatMul": 2, "Gather": 1, "Resize": 0}),
        ((1, 9, 2, 5), (65, 9), {"MatMul": 2, "Gather": 1, "Resize": 0}),
        ((1, 2, 32, 3), (9, 63), {"MatMul": 2, "Gather": 1, "Resize": 0}),
        ((1, 2, 49, 3), (9, 97), {"MatMul": 0, "Gather": 0, "Resize": 1}),  # wide rows
        ((1, 9, 9, 3), (17, 65), {"MatMul": 0, "Gather": 0, "Resize": 1}),  # 2 lines for each row
        ((2, 9, 9, 3), (65, 65), {"MatMul": 0, "Gather": 0, "Resize": 1}),  # two samples
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_large_interpolations_are_products_of_matrices(
    shape: tuple[int, ...], sizes: tuple[int, int], nodes: dict[str, int], dtype: str, tmp_path: Path
) -> None:
    import onnx

    source, path, low = tmp_path / "source.tflite", tmp_path / "result.onnx", -128 if dtype == "int8" else 0
    specs = [
        TensorSpec("x", shape, dtype, 0.07, low + 31),
        TensorSpec("sizes", (2,), "int32", data=np.array(sizes, np.int32)),
        TensorSpec("y", (shape[0], *sizes, shape[3]), dtype, 0.07, low + 31),
    ]
    source.write_bytes(single_op("RESIZE_BILINEAR", {"halfPixelCenters": False, "alignCorners": True}, specs[:2], specs[2:]))
    convert(source, path)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert {kind: kinds.count(kind) for kind in nodes} == nodes
    x = np.random.default_rng(1).integers(low, low + 255, shape, np.int64, endpoint=True).astype(dtype)
    model = kernels_named("onnxruntime:optimized")[0].open(ModelFile(path, "onnxruntime:optimized"))
    assert np.array_equal(model.run(dict.fromkeys(model.inputs, x))["y"], run_litert(source.read_bytes(), [x])[0])
    (op,) = load(path).of_kind("Resize")
    assert op["arithmetic"] == "ties_up"


#: Kinds, scales and zero points of two inputs and a result of uint8, and formats, of which the plain operator differs in some pairs.
_PAIRS = [
    ("Sub", (0.004564597888381687, 15), (0.01595877161237944, 71), (0.01863481270860024, 127), ".tflite"),
    ("Sub", (1.3371672120434306, 124), (0.7283839557484826, 75), (0.9081788022458778, 138), ".tflite"),
    ("Mul", (0.0914050809750037, 114), (0.29639822622995604, 176), (4.031337071891742, 73), ".tflite"),
    ("Add", (0.014289910081853709, 110), (0.06218480459321365, 84), (0.06231209907507124, 27), ".onnx"),
    ("Sub", (0.4001830435448968, 32), (0.07489733736726346, 41), (0.3797449915247239, 160), ".onnx"),
]
#: Kinds, scales and zero points, and whether other scales are needed, of sums of onnxruntime that LiteRT's multipliers do not give.
_IN_FLOAT = [
    ("Add", (0.02233, 172), (0.11184, 61), (0.12302, 80), True),
    ("Sub", (0.01745, 245), (0.02251, 202), (0.02476, 107), False),
    (
        "Add",
        (0.08385830372571945, 166),
        (0.21724364161491394, 126),
        (0.1270691454410553, 0),
        True,
    ),  # 8 places away from its scales there are none
]


def _of_all_pairs(kind: str, sides: list[tuple[float, int]], dtype: str, suffix: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """An operator of two tensors that others compute, without changing them, and all pairs of codes."""
    first, layout = suffix == ".onnx", "channels_first" if suffix == ".onnx" else "channels_last"
    shape, low = (1, 1, 256, 256) if first else (1, 256, 256, 1), -128 if dtype == "int8" else 0
    a, b, y = (Quantization.per_tensor(scale, point + low) for scale, point in sides)
    tensors = [Tensor(name, dtype, shape, None, q) for name, q in (("a", a), ("b", b), ("c", a), ("d", b), ("y", y))]
    window = {"kernel_shape": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": layout}
    pools = [Op("AveragePool", (name,), (result,), window) for name, result in (("a", "c"), ("b", "d"))]
    graph = Graph("pair", {tensor.name: tensor for tensor in tensors}, (*pools, Op(kind, ("c", "d"), ("y",))), ("a", "b"), ("y",))
    codes = np.arange(low, low + 256).astype(dtype)
    each = np.broadcast_arrays(codes[:, None], codes[None, :])
    return graph, {name: np.ascontiguousarray(values).reshape(shape) for name, values in zip("ab", each, strict=True)}


def _run_all_pairs(path: Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    """Stored results in unsigned storage."""
    runtime, kernels = kernels_named("litert:default" if path.suffix == ".tflite" else "onnxruntime:optimized")
    model, given = runtime.open(ModelFile(path, kernels)), {}
    for name, (dtype, shape) in model.inputs.items():
        values = feed[name].reshape(shape)
        given[name] = values if values.dtype == dtype else (values.astype(np.int16) + (128 if dtype == "uint8" else -128)).astype(dtype)
    (found,) = model.run(given).values()
    return (found.astype(np.int16) + 128 * (found.dtype == np.int8)).reshape(256, 256)


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.parametrize("case", _PAIRS, ids=str)
def test_operators_of_two_tensors_round_alike_for_all_pairs(case: tuple[Any, ...], tmp_path: Path) -> None:
    """By other input scales, as a run and the proof both say; without, they differ, and the proof says that too."""
    kind, *sides, suffix = case
    graph, feed = _of_all_pairs(kind, sides, "uint8", suffix)
    source, result = tmp_path / f"source{suffix}", tmp_path / ("result.onnx" if suffix == ".tflite" else "result.tflite")
    save(graph, source)
    wanted = _run_all_pairs(source, feed)
    for numerics, is_equal in (("exact", True), ("fast", False)):
        report = convert(source, result, numerics=numerics, force=True)
        differing = int((_run_all_pairs(result, feed) != wanted).sum())
        assert prove(source, result).equal_for_all_inputs == (not differing) == is_equal
        assert any("other input scales" in change.text and change.text.endswith(f": 1 {kind}") for change in report.changes) == is_equal


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_additions_of_int8_have_zero_points_of_int8(tmp_path: Path) -> None:
    """QLinearAdd rounds the zero points' part in float32. onnxruntime stores int8 as uint8, for which LiteRT gives the same of all pairs,
    but not what is an input of the model, where one pair is another integer."""
    sides = [(0.050758812576532364, 8), (0.2959936857223511, 5), (0.25879403948783875, 138)]
    inner, feed = _of_all_pairs("Add", sides, "int8", ".onnx")
    outer = inner.evolve(ops=[replace(inner.ops[-1], inputs=("a", "b"))])
    for graph, wanted, class_ in ((inner, 0, "E1"), (outer, 1, "R1")):
        save(graph, tmp_path / "source.onnx", force=True)
        convert(tmp_path / "source.onnx", tmp_path / "result.tflite", numerics="fast", force=True)
        runs = [_run_all_pairs(tmp_path / name, feed) for name in ("source.onnx", "result.tflite")]
        (item,) = [
            item for item in prove(tmp_path / "source.onnx", tmp_path / "result.tflite").operators if item.operator.startswith("Add")
        ]
        assert (int((runs[0] != runs[1]).sum()), item.class_) == (wanted, class_)


@pytest.mark.parametrize(("format", "kernels", "target"), [("tflite", "litert:default", "ort-x86"), ("onnx", "", "tflite")])
def test_the_time_of_trials_grows_with_the_network_alone(format: str, kernels: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales are tried on an operator by itself: no trial copies the graph, or lists what writes and reads each of its tensors."""
    count, looked_at = 30, [0]
    scales = np.random.default_rng(3).uniform(0.02, 0.05, count + 2)
    sides = [
        Tensor(f"t{place}", "int8", (1, 8), None, Quantization.per_tensor(float(scale), place - 9)) for place, scale in enumerate(scales)
    ]
    ops = tuple(Op("Sub", (f"t{place}", f"t{place + 1}"), (f"t{place + 2}",)) for place in range(count))
    metadata = {SOURCE_FORMAT: format, **({SOURCE_KERNELS: kernels} if kernels else {})}
    graph = Graph("chain", {side.name: side for side in sides}, ops, ("t0", "t1"), (sides[-1].name,), metadata=metadata)

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Graph, *arguments: Any, **changes: Any) -> Any:
            looked_at[0] += len(self.ops)
            return method(self, *arguments, **changes)

        return run

    for name in ("evolve", "producers", "consumers"):
        monkeypatch.setattr(Graph, name, counted(getattr(Graph, name)))
    changed, notes = match_rounding(graph, target_named(target))
    assert changed is not graph and notes
    assert looked_at[0] < 20 * count


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_input_scales_of_an_addition_fit_a_first_operand_that_is_broadcast(tmp_path: Path) -> None:
    """QLinearAdd exchanges operands there, and rounds in another order: the scales are those that fit both."""
    sides = [(117.92788696289062, 17), (739.3176879882812, 255), (508.2665100097656, 117)]
    whole, _ = _of_all_pairs("Add", sides, "uint8", ".tflite")
    shapes = {"a": (1, 256, 1, 1), "b": (1, 1, 256, 1)}
    shapes |= {"c": shapes["a"], "d": shapes["b"]}
    graph = whole.evolve(tensors=[replace(whole[name], shape=shape) for name, shape in shapes.items()])
    feed = {name: np.arange(256, dtype=np.uint8).reshape(shapes[name]) for name in "ab"}
    save(graph, tmp_path / "source.tflite")
    convert(tmp_path / "source.tflite", tmp_path / "result.onnx")
    runs = [_run_all_pairs(tmp_path / name, feed) for name in ("source.tflite", "result.onnx")]
    assert np.array_equal(*runs)


def test_onnxruntime_exchanges_a_first_operand_that_is_broadcast() -> None:
    """One number of the first operand meets several of the second: qlinear_binary_op.cc has no such kernel, and takes the other order."""
    sides = [(0.050412148237228394, 255), (0.018055379390716553, 4), (0.03777320310473442, 123)]
    whole, feed = _of_all_pairs("Add", sides, "uint8", ".onnx")
    first = whole.evolve(tensors=[replace(whole["c"], shape=(1, 1, 256, 1)), replace(whole["d"], shape=(1, 1, 1, 256))])
    one = whole.evolve(tensors=[replace(whole["d"], shape=(1, 1, 1, 1))])
    found = []
    for graph in (whole, first, one):
        kernel = KERNELS["onnxruntime:optimized"].of(graph, graph.ops[-1])
        integers = None if kernel is None else kernel.compute_integers(graph, graph.ops[-1], [feed["a"], feed["b"]])
        assert integers is not None
        found.append(len(integers.ways))
    assert found == [1, 2, 1]


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.parametrize(("dtype", "scale", "zero_point"), [("int8", 0.0308, 0), ("uint8", 0.0371, 117), ("int8", 3.7e-4, -128)])
def test_inputs_of_onnx_are_divided_by_their_scale(dtype: str, scale: float, zero_point: int, tmp_path: Path) -> None:
    """With numerics "strict" the numbers next to every tie become what onnxruntime makes of them, as the proof says; by LiteRT's own
    operator some do not."""
    ties = (np.arange(-130, 258)[:, None] - 0.5 - zero_point) * np.float64(np.float32(scale))
    near = ties.astype(np.float32).view(np.int32) + np.arange(-2, 3, dtype=np.int32)
    data = near.view(np.float32).reshape(1, -1)
    quantization = Quantization.per_tensor(scale, zero_point)
    tensors = [Tensor("x", "float32", data.shape), Tensor("q", dtype, data.shape, None, quantization), Tensor("y", "float32", data.shape)]
    ops = Op("Quantize", ("x",), ("q",)), Op("Dequantize", ("q",), ("y",))
    save(Graph("inputs", {tensor.name: tensor for tensor in tensors}, ops, ("x",), ("y",)), tmp_path / "source.onnx")
    found = []
    for path, numerics in (("source.onnx", ""), ("strict.tflite", "strict"), ("exact.tflite", "exact")):
        if numerics:
            convert(tmp_path / "source.onnx", tmp_path / path, numerics=numerics)
            assert prove(tmp_path / "source.onnx", tmp_path / path).equal_for_all_inputs == (numerics == "strict")
        runtime, kernels = kernels_named("litert:default" if numerics else "onnxruntime:optimized")
        found += runtime.open(ModelFile(tmp_path / path, kernels)).run({"x": data}).values()
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    assert [op["arithmetic"] for op in load(tmp_path / "strict.tflite").ops if op.kind == "Quantize"] == ["divided"]
    convert(tmp_path / "strict.tflite", tmp_path / "back.onnx")
    assert [op.kind for op in load(tmp_path / "back.onnx").ops] == ["Quantize", "Dequantize"]


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.parametrize("case", _IN_FLOAT, ids=str)
def test_sums_without_multipliers_of_litert_are_of_float_values(case: tuple[Any, ...], tmp_path: Path) -> None:
    """Sums of onnxruntime that no multipliers of 20 bits give, and that a sum of dequantized inputs does, with numerics "strict"."""
    kind, *sides, has_other_scales = case
    graph, feed = _of_all_pairs(kind, sides, "uint8", ".onnx")
    source, result = tmp_path / "source.onnx", tmp_path / "result.tflite"
    save(graph, source)
    for numerics in ("fast", "exact", "strict"):
        report = convert(source, result, numerics=numerics, force=True)
        differing = int((_run_all_pairs(result, feed) != _run_all_pairs(source, feed)).sum())
        assert prove(source, result).equal_for_all_inputs == (not differing) == (numerics == "strict")
    assert any(change.text.startswith("in float") and change.text.endswith(f": 1 {kind}") for change in report.changes)
    assert any(op.kind == "Reinterpret" for op in load(result).ops) == has_other_scales


@pytest.mark.litert
@pytest.mark.onnxruntime
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("target", ["ort-x86", "ort-arm"])
def test_products_with_constants_round_alike_for_all_codes(target: str, is_first: bool, tmp_path: Path) -> None:
    """1 / 0.224, by which Keras' networks normalize images, is 125 / 28: odd multiples of 14 steps are next to ties."""
    source, path, back = (tmp_path / name for name in ("source.tflite", "result.onnx", "back.tflite"))
    given = TensorSpec("x", (1, 256), "int8", 0.01845697872340679, -16)
    factor = TensorSpec("factor", (1, 1), "int8", 0.017507003620266914, -128, data=np.array([[127]], np.int8))
    result = TensorSpec("y", (1, 256), "int8", 0.01845697872340679, -16)
    source.write_bytes(single_op("MUL", {}, [factor, given] if is_first else [given, factor], [result]))
    (wanted,) = run_litert(source.read_bytes(), [CODES])
    convert(source, path, target=target)
    assert np.array_equal(ran(path, "onnxruntime:optimized"), wanted)
    convert(path, back)
    assert np.array_equal(run_litert(back.read_bytes(), [CODES])[0], wanted)


def softmax_of(classes: int, scale: float, path: Path, shape: tuple[int, ...] = (1,)) -> bytes:
    """Write a Softmax of int8 at 1/256 as a .tflite file."""
    sides = [TensorSpec("x", (*shape, classes), "int8", scale, 3), TensorSpec("y", (*shape, classes), "int8", 1 / 256, -128)]
    path.write_bytes(single_op("SOFTMAX", {"beta": 1.0}, sides[:1], sides[1:]))
    return path.read_bytes()


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_a_softmax_of_three_classes_is_onnxruntimes_where_all_codes_agree(tmp_path: Path) -> None:
    """At some scales the two kernels differ for a few of 196,608 rows, so that LiteRT's sums in order are written."""
    each = np.arange(256, dtype=np.uint8)
    pairs = np.stack(np.meshgrid(each, each, indexing="ij"), axis=-1).reshape(-1, 2)
    rows = np.concatenate([np.insert(pairs, place, 255, axis=1) for place in range(3)])
    runtime, name = kernels_named("onnxruntime:optimized")
    forms = set()
    for number, scale in enumerate(map(np.float32, (0.1605089, 0.0625, 0.2, 0.03, 0.11, 0.35, 0.27))):
        wanted = np.clip(softmax_steps(rows.astype(np.int64), scale, np.float32(1 / 256), -1), 0, 255)
        ways, _ = onnxruntime_softmax(rows, float(scale), Quantization.per_tensor(1 / 256, 0), "uint8", -1)
        differs = np.any([way != wanted for way in ways], axis=(0, 2))
        chosen = np.concatenate([rows[differs][:300], np.random.default_rng(number).choice(rows, 1000)])
        data = (chosen.astype(np.int16) - 128).astype(np.int8)
        source, path = tmp_path / f"{number}.tflite", tmp_path / f"{number}.onnx"
        content = softmax_of(3, float(scale), source, (len(data),))
        convert(source, path)
        (op,) = [op for op in load(path).ops if op.kind == "Softmax"]
        (found,) = runtime.open(ModelFile(path, name)).run({"x": data}).values()
        assert np.array_equal(found, run_litert(content, [data])[0])
        assert bool(op["arithmetic"]) == differs.any()
        forms.add(op["arithmetic"])
    assert forms == {"", "tflite_softmax"}


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_kernels_below_the_largest_give_the_same_for_shifted_data(tmp_path: Path) -> None:
    """All rows of three elements are tried by those whose largest element is the largest code (Kernel.below_largest)."""
    rows = np.random.default_rng(7).integers(-128, 128, (20000, 3)).astype(np.int8)
    highest = (rows + (127 - rows.max(axis=1, keepdims=True).astype(np.int16))).astype(np.int8)
    content = softmax_of(3, 0.07, tmp_path / "source.tflite", (len(rows),))
    convert(tmp_path / "source.tflite", tmp_path / "fast.onnx", numerics="fast")
    runtime, name = kernels_named("onnxruntime:optimized")
    model = runtime.open(ModelFile(tmp_path / "fast.onnx", name))
    assert np.array_equal(run_litert(content, [rows])[0], run_litert(content, [highest])[0])
    assert np.array_equal(*(next(iter(model.run({"x": data}).values())) for data in (rows, highest)))
