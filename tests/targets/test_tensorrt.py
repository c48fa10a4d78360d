"""The target tensorrt: what it writes is built by TensorRT-RTX's own parser and builder, and runs as the target says. No engine is run.

QCONVERT_ZOO=1 (as `make zoo` sets) builds every model of fixtures/ that the target takes.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from loaded import onnx_graph
from onnx_nodes import model_of
from passes.graphs import CONV, constant, make, q, random_integers
from random_graphs import random_graph
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, convert, load
from qconvert.conversion.verifying import random_inputs
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.formats.onnx.writer import build as write
from qconvert.graph import numpy_dtype
from qconvert.graph.metadata import SHIFTED
from qconvert.plugins import target_named
from qconvert.runtimes.onnxruntime import OnnxRuntime
from qconvert.runtimes.tensorrt import Build, Builder
from qconvert.targets.tensorrt import bounds

pytest.importorskip("tensorrt_rtx_bindings")

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: A model of each source: its convolutions and products, and how many of them run on integers.
MODELS = {
    "tiny_resnet_cifar10_int8.tflite": (10, 10),
    "tiny_vww_mobilenet_int8.tflite": (28, 28),  # biases that int32 would not hold
    "coral_mobilenet_v1_025_128_uint8.tflite": (28, 28),
    "onnx/torch_fx_fbgemm_vision.onnx": (7, 6),  # one of them transposed
    "torch/classifier/eager_fbgemm_traced.pt": (3, 3),
}
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def products(model: Any) -> dict[str, tuple[str, bool]]:
    """The nodes of a file that sum products of quantized weights: name -> its operator, and whether the target says integers."""
    made = {name: node for node in model.graph.node for name in node.output}
    found = {}
    for node in model.graph.node:
        sides = [made[name] for name in node.input[:2] if name in made]
        if node.op_type in PRODUCTS and any(side.op_type == "DequantizeLinear" for side in sides):
            whole = len(sides) == 2 and all(side.op_type == "DequantizeLinear" for side in sides)
            found[node.name] = node.op_type, whole and node.op_type != "ConvTranspose"
    return found


def as_told(model: Any, found: Build) -> tuple[int, int]:
    """How many products there are, and how many the engine sums on integers: each as the target says."""
    counts = [0, 0]
    for name, (operator, integers) in products(model).items():
        layers = [layer for layer in found.layers if layer.sums and any(node.name == name for node in layer.nodes)]
        assert all(layer.integer == integers for layer in layers), f"{operator} {name}: {[layer.name for layer in layers]}"
        counts[0] += 1
        counts[1] += integers
    return counts[0], counts[1]


@pytest.mark.tensorrt
@pytest.mark.parametrize("name", MODELS)
def test_every_convolution_of_quantized_weights_is_built_on_integers(name: str, tmp_path: Path, builder: Builder) -> None:
    path = tmp_path / "model.onnx"
    options = {"input_shape": "1,3,8,8"} if name.endswith(".pt") else {}
    report = convert(FIXTURES / name, path, target="tensorrt", **options)
    found = builder.build(path, bounds=bounds(load(path)))
    assert found.built, found.errors
    model = onnx.load(path)
    assert as_told(model, found) == MODELS[name]
    told = {line.kind: line for line in report.audit if line.integer}
    assert {"Conv"} <= told.keys()
    assert SHIFTED in {entry.key for entry in model.metadata_props}
    assert all(len(node.input) > 1 for node in model.graph.node if node.op_type == "Max")  # which would be for onnxruntime
    weights = {node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear" and node.attribute}
    constants = {item.name: item for item in model.graph.initializer}
    read = [node.input[1:] for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert all(len(names) == 2 and constants[names[1]].data_type == onnx.TensorProto.INT8 for names in read)
    assert all(not constants[scale].dims for scale, _ in read if scale not in weights)


@cache
def resnet() -> tuple[Graph, Graph]:
    """A network, and what stands for it on symmetric quantizations."""
    from qconvert.conversion.normalizing import normalize

    graph = load(FIXTURES / "tiny_resnet_cifar10_int8.tflite")
    return normalize(graph, target_named("generic"))[0], normalize(graph, target_named("tensorrt"))[0]


@pytest.mark.onnxruntime
def test_the_file_computes_what_the_affine_one_does() -> None:
    """In onnxruntime without optimizations; one float32 sum in millions rounds otherwise."""
    rng = np.random.default_rng(0)
    models = [OnnxRuntime(write(graph, 0, {}, numerics="fast").SerializeToString(), optimize=False) for graph in resnet()]
    for _ in range(5):
        data = {resnet()[0].inputs[0]: rng.integers(-128, 128, (1, 32, 32, 3)).astype(np.int8)}
        was, now = (next(iter(model.run(data).values())).astype(np.int32) for model in models)
        assert np.abs(was - now).max() <= 1


@pytest.mark.formats
def test_the_weights_are_the_sources() -> None:
    before, after = resnet()
    weights = [tensor for tensor in before.constants() if tensor.dtype == "int8"]
    assert len(weights) == 10
    for tensor in weights:
        found = after[tensor.name]
        assert tensor.data is not None and found.data is not None and found.quantization == tensor.quantization
        assert np.array_equal(tensor.data, found.data)


def conv(dtype: str = "int8", scales: Quantization | None = None, **more: Any) -> Graph:
    quantization = scales or q(0.05)
    tensors = [Tensor("x", "float32", (1, 4, 5, 5)), Tensor("a", dtype, None, None, quantization), Tensor("b", dtype, None, None, q(0.3)),
               constant("w", random_integers((4, 4, 1, 1), "int8").clip(-127, 127), q(0.01))]  # fmt: skip
    ops = [
        Op("Quantize", ("x",), ("a",)),
        Op("Conv", ("a", "w"), ("b",), {**CONV, "pads": (0, 0, 0, 0), **more}),
        Op("Dequantize", ("b",), ("y",)),
    ]
    return make(ops, tensors, "x", "y")


def real(
    kind: str, *inputs: Tensor, shape: tuple[int, ...] = (1, 4, 6, 6), dtype: str = "float32", outputs: int = 1, **attributes: Any
) -> Graph:
    results = [f"y{index}" for index in range(outputs)]
    op = Op(kind, ("x", *(tensor.name for tensor in inputs)), tuple(results), attributes)
    known = [Tensor("x", dtype, shape), *inputs]
    if kind == "DynamicQuantizeLinear":
        known += [Tensor("y0", "uint8", None), Tensor("y1", "float32", None), Tensor("y2", "uint8", None)]
    elif dtype != "float32" or kind in ("ArgMax", "NonZero"):
        known.append(Tensor("y0", {"ArgMax": "int64", "MatMulInteger": "int32", "NonZero": "int64"}.get(kind, dtype), None))
    return make([op], known, "x", " ".join(results))


def divided() -> Graph:
    tensors = [Tensor("x", "float32", (1, 4)), Tensor("a", "int8", None, None, q(0.1)), Tensor("r", "float32", None)]
    ops = [Op("Quantize", ("x",), ("a",)), Op("Dequantize", ("a",), ("r",)), Op("Reciprocal", ("r",), ("y",))]
    return make(ops, tensors, "x", "y")


def channels() -> Graph:
    quantization = Quantization.per_axis([0.05, 0.1, 0.2, 0.3], 1)
    ops = [Op("Quantize", ("x",), ("a",)), Op("Dequantize", ("a",), ("y",))]
    return make(ops, [Tensor("x", "float32", (1, 4)), Tensor("a", "int8", None, None, quantization)], "x", "y")


INDICES = constant("i", np.array([[0], [2]], np.int64))
#: What the target refuses: the rule, and whether TensorRT-RTX refuses it too or, silently, computes something else.
REFUSED = {
    "16 bits": (conv("int16"), "activations are int8", True),
    "several scales": (channels(), "one scale for the whole tensor", False),
    "dynamic scales": (real("DynamicQuantizeLinear", outputs=3), "has no such operator", True),
    "plain products": (real("MatMulInteger", constant("w", random_integers((6, 3), "int8")), dtype="int8", shape=(2, 6)), "no such", True),
    "bits": (real("BitwiseAnd", Tensor("z", "int32", (1, 4, 6, 6), np.ones((1, 4, 6, 6), np.int32)), dtype="int32"), "has no such", True),
    "types": (real("Add", constant("c", np.ones(4, np.uint32)), dtype="uint32", shape=(4,)), "have a type", True),
    "holes": (real("MaxPool", kernel_shape=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0), dilations=(2, 2), data_format="channels_first"),
              "no dilation", True),
    "sums": (real("ScatterND", INDICES, constant("u", np.ones((2, 4, 6, 6), np.float32)), shape=(3, 4, 6, 6), reduction="add"),
             "scattered values", True),
    "one axis": (real("Softmax", shape=(6,), axis=0), "at least two axes", True),
    "the largest of one axis": (real("ArgMax", shape=(6,), axis=0, keepdims=0), "at least two axes", True),
    "divisions": (divided(), "drops the division", False),
}  # fmt: skip


@pytest.mark.tensorrt
@pytest.mark.cross_section
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_with_its_rule(name: str, builder: Builder) -> None:
    graph, rule, refuses = REFUSED[name]
    target = target_named("tensorrt")
    found = [verdict for _, verdict in target.verdicts(graph) if verdict.runs == "refused"]
    assert found and any(rule in violation.rule and violation.remedy for verdict in found for violation in verdict.violations)
    assert builder.build(write(graph, 0, {}, numerics="fast").SerializeToString()).built is not refuses


@pytest.mark.tensorrt
@pytest.mark.formats
def test_rtx_lacks_operators_that_tensorrt_has(builder: Builder) -> None:
    graph = real("NonZero", shape=(2, 3))
    assert all(verdict.runs != "refused" for _, verdict in target_named("tensorrt").verdicts(graph))
    (verdict,) = (verdict for _, verdict in target_named("tensorrt-rtx").verdicts(graph))
    assert verdict.runs == "refused" and "TensorRT-RTX has no such operator" in verdict.rule
    assert not builder.build(write(graph, 0, {}).SerializeToString()).parsed


@pytest.mark.formats
def test_refusals_name_what_would_help(tmp_path: Path) -> None:
    """Of 16-bit activations the pass that makes 8 of them; nothing is written."""
    path = tmp_path / "model.onnx"
    with refused(UnsupportedError, "target-rules", holds=("int16", "int8")) as error:
        convert(FIXTURES / "tflm_seanet_conv_int16x8.tflite", path, target="tensorrt")
    assert "change_bits (-O activation_bits=8 -O edges=change, lossy)" in error.value.remedy and not path.exists()
    convert(
        FIXTURES / "tflm_seanet_conv_int16x8.tflite", path, target="tensorrt", passes=["change_bits"], activation_bits=8, edges="change"
    )
    assert path.exists()


def normalized(graph: Graph) -> Graph:
    from qconvert.conversion.normalizing import normalize

    return normalize(graph, target_named("tensorrt"))[0]


def built(builder: Builder, graph: Graph, capability: str = "sm89") -> Build:
    assert not any(verdict.runs == "refused" for _, verdict in target_named("tensorrt").verdicts(graph))
    return builder.build(write(graph, 0, {}, numerics="fast").SerializeToString(), capability)


def blocks(dtype: str, points: int, *, size: int = 64, scale: float = 0.1) -> Graph:
    """Rows times weights (64, 16) of integers from 0 to 15 with scales and zero points for each 16 along the depth."""
    rng = np.random.default_rng(3)
    count = -(-size // 16)
    quantization = Quantization(
        rng.uniform(scale / 2, scale, (count, 16)).astype(np.float32), np.full((count, 16), points, np.int64), 0, 16
    )
    low = 0 if dtype.startswith("u") else -8
    weights = Tensor("w", dtype, (size, 16), (rng.integers(0, 16, (size, 16)) + low).astype(numpy_dtype(dtype)), quantization)
    ops = [Op("Dequantize", ("w",), ("r",)), Op("MatMul", ("x", "r"), ("y",))]
    return make(ops, [Tensor("x", "float32", (3, size)), weights, Tensor("r", "float32", None)], "x", "y")


@pytest.mark.tensorrt
@pytest.mark.parametrize(
    ("dtype", "point", "stored"), [("int4", 0, "int4"), ("uint4", 8, "int4"), ("uint4", 3, "int8"), ("uint8", 8, "int4")]
)
def test_weights_in_blocks_are_four_bits_with_zero_point_0_where_they_fit(dtype: str, point: int, stored: str, builder: Builder) -> None:
    graph = blocks(dtype, point)
    changed = normalized(graph)
    (constant_,) = changed.constants()
    assert constant_.dtype == stored and constant_.quantization is not None and constant_.quantization.is_symmetric
    assert constant_.quantization.block_size == 16
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    assert np.array_equal(evaluate(graph, {"x": x})["y"], evaluate(changed, {"x": x})["y"])
    found = built(builder, changed)
    assert found.built and ("runtime_fusion" in {layer.type for layer in found.layers}) is (stored == "int4")
    assert not built(builder, changed, "sm75").built


@pytest.mark.tensorrt
@pytest.mark.formats
def test_weights_in_parts_of_blocks_are_real(builder: Builder) -> None:
    changed = normalized(blocks("int4", 0, size=60))
    assert [tensor.dtype for tensor in changed.constants()] == ["float32"] and built(builder, changed).built


@pytest.mark.tensorrt
@pytest.mark.formats
@pytest.mark.parametrize(("dtype", "point"), [("int4", 0), ("uint4", 8), ("uint4", 2), ("int2", 0)])
def test_weights_of_fewer_bits_beside_int8_are_int8(dtype: str, point: int, builder: Builder) -> None:
    width = 4 if "4" in dtype else 2
    low = 0 if dtype.startswith("u") else -(2 ** (width - 1))
    graph = conv()
    data = (np.random.default_rng(0).integers(0, 2**width, (4, 4, 1, 1)) + low).astype("int8")
    weights = Tensor("w", dtype, (4, 4, 1, 1), data.astype(numpy_dtype(dtype)), q(0.01, point))
    graph = Graph(graph.name, {**graph.tensors, "w": weights}, graph.ops, graph.inputs, graph.outputs)
    changed = normalized(graph)
    found = changed["w"]
    assert found.dtype == "int8" and found.data is not None and np.array_equal(found.data, data - point)
    layers = [layer.integer for layer in built(builder, changed).layers if layer.sums]
    assert layers == [True]


@pytest.mark.tensorrt
@pytest.mark.parametrize("kind", ["Conv", "Gemm"])
def test_eight_bit_floats_pass_through(kind: str, builder: Builder) -> None:
    """On both sides of a product they have a kernel, from SM89 on."""
    import ml_dtypes

    dtype, shape, sizes = "float8e4m3fn", (16, 16, 3, 3), (1, 16, 8, 8)
    if kind == "Gemm":
        shape, sizes = (16, 32), (4, 32)  # type: ignore[assignment]
    weights = np.random.default_rng(0).normal(size=shape).astype(ml_dtypes.float8_e4m3fn)
    tensors = [Tensor("x", "float32", sizes), Tensor("a", dtype, None, None, q(0.05)), Tensor("b", dtype, None, None, q(0.1)),
               Tensor("w", dtype, shape, weights, Quantization.per_axis(np.full(16, 0.01), 0)), Tensor("c", dtype, None, None, q(0.1)),
               constant("s", np.array([-1], np.int64))]  # fmt: skip
    ops = [Op("Quantize", ("x",), ("a",)), Op(kind, ("a", "w"), ("b",), {**(CONV if kind == "Conv" else {}), "activation": "relu"}),
           Op("Reshape", ("b", "s"), ("c",)), Op("Dequantize", ("c",), ("y",))]  # fmt: skip
    graph = make(ops, tensors, "x", "y")
    changed = normalized(graph)
    assert changed["w"] == graph["w"]
    rules = {op.kind: verdict.rule for op, verdict in target_named("tensorrt").verdicts(changed)}
    assert rules[kind] == "kernel of 8-bit floats"
    found = built(builder, changed)
    assert [layer.inputs[0].dtype for layer in found.layers if layer.sums] == ["FP8"]
    assert not built(builder, changed, "sm80").built


@pytest.mark.tensorrt
@pytest.mark.onnxruntime
def test_random_networks_are_built_and_compute_what_they_did(builder: Builder) -> None:
    """Those that the target takes. Ties of averages are the source's kernels' own; one step there may be two after."""
    elements = different = networks = 0
    for seed in range(60):
        graph = random_graph(seed)
        changed = normalized(graph)
        if any(verdict.runs == "refused" for _, verdict in target_named("tensorrt").verdicts(changed)):
            continue
        try:
            content = write(changed, 0, {}, numerics="fast", guards=False).SerializeToString()
        except UnsupportedError as error:
            assert "channels_last" in str(error)  # data of three axes, as no file has them
            continue
        found = builder.build(content)
        assert found.built, f"seed {seed}: {found.errors}"
        networks += 1
        feed = random_inputs(graph, np.random.default_rng(seed))
        was, now = evaluate(graph, feed), OnnxRuntime(content, optimize=False).run(dict(zip(changed.inputs, feed.values(), strict=True)))
        for name, again in zip(graph.outputs, changed.outputs, strict=True):
            if graph[name].is_quantized and was[name].shape == now[again].shape:
                steps = np.abs(was[name].astype(np.int64) - now[again])
                elements, different = elements + steps.size, different + int((steps > 0).sum())
    assert networks > 30 and elements > 1000 and different <= elements // 50


def models() -> list[Path]:
    """Every model that the fixtures hold, where all are asked for; else two small ones."""
    if not os.environ.get("QCONVERT_ZOO"):
        return [FIXTURES / "tiny_kws_dscnn_int8.tflite", FIXTURES / "onnx" / "torch_fx_fbgemm_vision.onnx"]
    found = [*FIXTURES.glob("*.tflite"), *FIXTURES.glob("onnx/*.onnx"), *FIXTURES.glob("torch/*/*.p*")]
    return sorted(path for path in found if path.suffix in (".tflite", ".onnx", ".pt", ".pt2", ".ptl"))


@pytest.mark.tensorrt
@pytest.mark.formats
@pytest.mark.parametrize("path", models(), ids=lambda path: path.name)
def test_whole_models_are_built_as_the_target_says(path: Path, tmp_path: Path, builder: Builder) -> None:
    try:
        convert(path, tmp_path / "model.onnx", target="tensorrt-rtx")
    except QConvertError as error:
        pytest.skip(str(error)[:200])
    model = onnx.load(tmp_path / "model.onnx")
    if path.suffix in (".pt", ".ptl") and any(not value.type.tensor_type.shape.dim for value in model.graph.input):
        pytest.skip("the file does not say the rank of its inputs")
    found = builder.build(tmp_path / "model.onnx", bounds=bounds(load(tmp_path / "model.onnx")))
    assert found.built, found.errors
    as_told(model, found)


@pytest.mark.formats
def test_the_graph_can_be_read_again() -> None:
    graph = resnet()[1]
    again = onnx_graph(write(graph, 0, {}, numerics="fast").SerializeToString())
    assert again.outputs == graph.outputs and again.inputs == graph.inputs


@pytest.mark.tensorrt
@pytest.mark.formats
def test_loops_that_read_a_condition_which_they_are_not_given_are_refused(tmp_path: Path, builder: Builder) -> None:
    """TensorRT's parser knows no such tensor; with the condition it takes the loop."""
    from onnx import TensorProto, helper, numpy_helper

    info, real = helper.make_tensor_value_info, TensorProto.FLOAT
    nodes = [helper.make_node("Identity", ["given"], ["again"]), helper.make_node("Mul", ["v", "two"], ["w"])]
    sides = [info("index", TensorProto.INT64, []), info("given", TensorProto.BOOL, []), info("v", real, [4])]
    results = [info("again", TensorProto.BOOL, []), info("w", real, [4])]
    body = helper.make_graph(nodes, "body", sides, results, [numpy_helper.from_array(np.float32(2), "two")])
    for condition, refuses in (("", True), ("true", False)):
        loop = helper.make_node("Loop", ["n", condition, "x"], ["y"], body=body)
        constants = [numpy_helper.from_array(np.array(True), "true"), numpy_helper.from_array(np.int64(3), "n")]
        graph = helper.make_graph([loop], "g", [info("x", real, [4])], [info("y", real, [4])], constants[not condition :])
        onnx.save(model_of(graph), tmp_path / "loop.onnx")
        assert builder.build(tmp_path / "loop.onnx").parsed is not refuses
        if refuses:
            with refused(UnsupportedError, "target-rules", holds=("Loop",)):
                convert(tmp_path / "loop.onnx", tmp_path / "model.onnx", target="tensorrt")
        else:
            convert(tmp_path / "loop.onnx", tmp_path / "model.onnx", target="tensorrt")
            assert builder.build(tmp_path / "model.onnx").built
