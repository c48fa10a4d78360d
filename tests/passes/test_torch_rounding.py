"""Additions and averages of PyTorch's engines give the same integers in onnxruntime and LiteRT as the evaluator, which is PyTorch's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qconvert
from qconvert.arithmetic import (
    ADDITIONS,
    TORCH_AVERAGES,
    averaging_scale,
    has_xnnpack_add,
    is_same_addition,
    split_product,
    torch_average,
    torch_quantize,
    xnnpack_add,
)
from qconvert.evaluate import evaluate
from qconvert.graph import Array, Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_FORMAT, SOURCE_KERNELS, STATED_ATTRIBUTES
from qconvert.kernels.torch_forms import TORCH_ROUNDINGS
from qconvert.operators import KINDS
from qconvert.operators.shapes_and_functions import infer
from qconvert.passes.match_rounding import match_rounding
from qconvert.passes.restate_attributes import restate_attributes
from qconvert.plugins import ModelFile, runtimes, target_named

_RUNTIMES = {".onnx": ("onnxruntime", "optimized"), ".tflite": ("litert", "default")}


def _run(graph: Graph, folder: Path, suffix: str, feed: Mapping[str, Array], **options: Any) -> tuple[dict[str, Array], list[str]]:
    """Stored outputs as uint8, and what the conversion changed."""
    qconvert.save(graph, folder / "model.qgraph", force=True)
    report = qconvert.convert(folder / "model.qgraph", folder / f"model{suffix}", force=True, **options)
    name, kernels = _RUNTIMES[suffix]
    model = runtimes()[name].open(ModelFile(folder / f"model{suffix}", kernels))
    signed = {name: model.inputs[name][0] == "int8" for name in feed}
    given = {name: (value.astype(np.int16) - 128).astype(np.int8) if signed[name] else value for name, value in feed.items()}
    found = {name: value.astype(np.int16) + 128 * (value.dtype == np.int8) for name, value in model.run(given).items()}
    return found, [change.text for change in report.changes]


def _graph(op: Op, tensors: list[Tensor], inputs: tuple[str, ...]) -> Graph:
    return Graph("net", {tensor.name: tensor for tensor in tensors}, (op,), inputs, op.outputs, metadata={SOURCE_KERNELS: "torch:qnnpack"})


def _addition(name: str, seed: int) -> tuple[Graph, dict[str, Array]]:
    rng = np.random.default_rng(seed)
    scales = [0.02 * 2 ** rng.uniform(-2, 1) for _ in range(3)]
    scales[1] = scales[0] if seed % 5 == 0 else scales[1]
    quantizations = [Quantization.per_tensor(scale, int(rng.integers(0, 256)) * (seed % 4 > 0)) for scale in scales]
    tensors = [Tensor(key, "uint8", (256, 256), None, quantization) for key, quantization in zip("abc", quantizations, strict=True)]
    codes = np.arange(256, dtype=np.uint8)
    feed = dict(zip("ab", (np.array(side) for side in np.broadcast_arrays(codes[:, None], codes[None, :])), strict=True))
    return _graph(Op("Add", ("a", "b"), ("c",), {"arithmetic": name}), tensors, ("a", "b")), feed


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("suffix", _RUNTIMES)
@pytest.mark.parametrize("name", ["qnnpack", "fbgemm"])
def test_additions_of_all_pairs(name: str, suffix: str, tmp_path: Path) -> None:
    """Equal in every pair unless the report says that some are not; decomposed where the runtime's own kernel is not equal."""
    changed = 0
    for seed in range(16):
        graph, feed = _addition(name, seed)
        found, said = _run(graph, tmp_path, suffix, feed)
        wanted = evaluate(graph, feed)["c"].astype(np.int16)
        missed = int((found["c"] != wanted).sum())
        assert missed <= (8 if any("another kernel" in text for text in said) else 0), (seed, missed, said)
        changed += any("to round as PyTorch does for every pair" in text for text in said)
    assert changed


@pytest.mark.formats
@pytest.mark.parametrize("name", ["qnnpack", "fbgemm"])
def test_additions_come_back_from_onnx(name: str, tmp_path: Path) -> None:
    """Those that onnxruntime's own kernel gives, those on other scales, and those in float64; and of other scales none."""
    forms = set()
    for seed in range(16):
        graph, _ = _addition(name, seed)
        qconvert.save(graph, tmp_path / "model.onnx", force=True)
        model = onnx.load(tmp_path / "model.onnx")
        kinds = {node.op_type for node in model.graph.node}
        forms.add("float64" if "Floor" in kinds else "nudged" if "Cast" in kinds else "plain")
        assert qconvert.diff(graph, qconvert.load(tmp_path / "model.onnx")) == []
    assert {"plain", "nudged"} <= forms


@pytest.mark.formats
@pytest.mark.parametrize("name", ["qnnpack", "fbgemm"])
def test_additions_come_back_from_tflite(name: str, tmp_path: Path) -> None:
    """Those that LiteRT's own kernel gives; of a note that is not true of the file's scales none."""
    found = set()
    for seed in range(16):
        graph, _ = _addition(name, seed)
        qconvert.save(graph, tmp_path / "model.qgraph", force=True)
        qconvert.convert(tmp_path / "model.qgraph", tmp_path / "model.tflite", force=True)
        back = qconvert.load(tmp_path / "model.tflite")
        own = [op["arithmetic"] for op in back.ops if op.kind == "Add"] if len(back.ops) == 1 else []
        found.update(own)
        noted = back.evolve(metadata={**back.metadata, STATED_ATTRIBUTES: json.dumps({"c": {"arithmetic": name}})})
        bare = noted.evolve(ops=[op.with_attributes(arithmetic="") if op.kind == "Add" else op for op in noted.ops])
        again = restate_attributes(bare, None)[0]
        stated = [op["arithmetic"] for op in again.ops if op.kind == "Add" and op.outputs == ("c",)]
        (last,) = [op for op in again.ops if op.kind == "Add"]
        quantizations = [again[key].quantization for key in (*last.inputs, "c")]
        a, b, c = (quantization for quantization in quantizations if quantization is not None)
        if stated:
            alike = has_xnnpack_add((a, b), c) and is_same_addition(name, xnnpack_add, (a, b), c, again["c"].dtype)
            assert stated == [name if alike else ""]
    assert name in found


@pytest.mark.formats
def test_other_additions_of_a_tflite_file_round_as_its_kernels() -> None:
    """Next to one that an engine's note names."""
    found = []
    for seed in range(16):
        graph, _ = _addition("qnnpack", seed)
        pair = [Op("Add", ("a", "b"), (name,), {"arithmetic": own}) for name, own in (("c", "qnnpack"), ("d", ""))]
        metadata = {SOURCE_KERNELS: "litert:default", SOURCE_FORMAT: "tflite"}
        both = graph.evolve(tensors=[replace(graph["c"], name="d")], ops=pair, outputs=("c", "d"), metadata=metadata)
        matched, _ = match_rounding(both, target_named("ort-x86"))
        assert matched.ops[0]["arithmetic"] == "qnnpack"
        found.append(matched.ops[1]["arithmetic"])
    assert set(found) == {"", "xnnpack"}


@pytest.mark.formats
def test_a_note_of_other_scales_is_not_believed(tmp_path: Path) -> None:
    """An addition that was noted as plain: with the scale that a result has since, the writer would decompose it."""
    graph, _ = _addition("qnnpack", 0)
    others = [_addition("qnnpack", seed)[0] for seed in range(16)]
    found = [(item, _written(item, tmp_path)) for item in [graph, *others]]
    plain = next(model for item, model in found if len(model.graph.node) == 4)
    nudged = next(model for item, model in found if len(model.graph.node) > 4)
    props = {item.key: item.value for item in plain.metadata_props}
    onnx.helper.set_model_props(nudged, props)
    onnx.save(nudged, tmp_path / "edited.onnx")
    assert [op["arithmetic"] for op in qconvert.load(tmp_path / "edited.onnx").ops if op.kind == "Add"] == [""]


def _written(graph: Graph, folder: Path) -> Any:
    qconvert.save(graph, folder / "model.onnx", force=True)
    return onnx.load(folder / "model.onnx")


@pytest.mark.onnxruntime
def test_fast_numerics_leave_additions_to_the_kernel(tmp_path: Path) -> None:
    graph, feed = _addition("qnnpack", 1)
    found, said = _run(graph, tmp_path, ".onnx", feed, numerics="fast")
    assert not any("to round as PyTorch" in text for text in said)
    assert np.abs(found["c"] - evaluate(graph, feed)["c"].astype(np.int16)).max() <= 1


_WINDOWS = [
    ("AveragePool", {"kernel_shape": (2, 3), "strides": (1, 2), "pads": (1, 0, 1, 0), "count_include_pad": 1}),
    ("AveragePool", {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 0, 0)}),
    ("GlobalAveragePool", {}),
    ("ReduceMean", {"keepdims": 0}),
]


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("suffix", _RUNTIMES)
@pytest.mark.parametrize("name", TORCH_AVERAGES)
@pytest.mark.parametrize(("kind", "attributes"), _WINDOWS)
def test_averages(name: str, kind: str, attributes: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    """With a quantization with an odd zero point, where ties of steps and those of stored integers go to other sides."""
    rng = np.random.default_rng(len(kind))
    quantization, shape = Quantization.per_tensor(0.0371, 117), (1, 4, 6, 6)
    after = {"GlobalAveragePool": (1, 4, 1, 1), "ReduceMean": (1, 4)}.get(kind)
    after = after or ((1, 4, 7, 2) if attributes["kernel_shape"] == (2, 3) else (1, 4, 3, 3))
    tensors = [Tensor("x", "uint8", shape, None, quantization), Tensor("y", "uint8", after, None, quantization)]
    inputs: tuple[str, ...] = ("x",)
    if kind == "ReduceMean":
        tensors.append(Tensor("axes", "int64", (2,), np.array([2, 3])))
        inputs = ("x", "axes")
    layout = {} if kind == "ReduceMean" else {"data_format": "channels_first"}
    graph = _graph(Op(kind, inputs, ("y",), {**attributes, **layout, "arithmetic": name}), tensors, ("x",))
    for _ in range(4):
        feed = {"x": rng.integers(100, 140, shape).astype(np.uint8)}
        found, said = _run(graph, tmp_path, suffix, feed)
        assert any("averages as convolutions" in text for text in said)
        missed = np.mean(found["y"].reshape(after) != evaluate(graph, feed)["y"])
        assert missed <= (0.1 if any("a few ties" in text for text in said) else 0)


@pytest.mark.formats
@pytest.mark.parametrize("size", [6, 5, "height"])
@pytest.mark.parametrize("name", ["qnnpack_average", "fbgemm_adaptive"])
@pytest.mark.parametrize(("kind", "attributes"), _WINDOWS)
def test_averages_come_back_from_onnx(name: str, kind: str, attributes: dict[str, Any], size: int | str, tmp_path: Path) -> None:
    """Those written as convolutions, those that are never ties, and those of which nothing is known before they run."""
    graph = _average(name, kind, attributes, size)
    model = _written(graph, tmp_path)
    ties = kind == "AveragePool" or size == 6
    assert any(node.op_type == "Conv" for node in model.graph.node) == ties
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.onnx")) == []


def test_a_form_of_an_engine_has_one_meaning() -> None:
    """A name that additions, averages and requantizations shared was taken for the form of another kind of operator."""
    groups = [set(ADDITIONS), set(TORCH_AVERAGES), set(TORCH_ROUNDINGS), {"xnnpack_line"}]
    assert sum(map(len, groups)) == len(set().union(*groups))
    by_kind = {name: set(kind.attributes["arithmetic"].choices) for name, kind in KINDS.items() if "arithmetic" in kind.attributes}
    shared = {name for name, choices in by_kind.items() if sum(bool(choices & group) for group in groups) > 1}
    assert shared == {"ReduceMean"}  # whose roundings of float means are of no other kind


@pytest.mark.parametrize("name", TORCH_AVERAGES)
def test_averages_are_judged_as_the_integer_kernels_that_they_become(name: str) -> None:
    graph = _average(name, "GlobalAveragePool", {}, 6)
    assert target_named("ort-x86").judge(graph, graph.ops[0]).runs == "integers"


@pytest.mark.formats
def test_an_average_whose_data_were_resized_is_not_the_one_noted(tmp_path: Path) -> None:
    """Of 25 integers none is a tie; of 36 the plain node rounds otherwise than the note says."""
    model = _written(_average("qnnpack_average", "GlobalAveragePool", {}, 5), tmp_path)
    for size in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        size.dim_value = 6
    onnx.save(model, tmp_path / "edited.onnx")
    kinds = [(op.kind, op["arithmetic"]) for file in ("model", "edited") for op in qconvert.load(tmp_path / f"{file}.onnx").ops]
    assert kinds == [("GlobalAveragePool", "qnnpack_average"), ("GlobalAveragePool", "")]


def _average(name: str, kind: str, attributes: dict[str, Any], size: int | str) -> Graph:
    quantization = Quantization.per_tensor(0.0371, 117)
    tensors = [Tensor("x", "uint8", (1, 4, size, size), None, quantization), Tensor("y", "uint8", None, None, quantization)]
    tensors += [Tensor("axes", "int64", (2,), np.array([2, 3]))] * (kind == "ReduceMean")
    layout = {} if kind == "ReduceMean" else {"data_format": "channels_first"}
    inputs = ("x", "axes") if kind == "ReduceMean" else ("x",)
    return infer(_graph(Op(kind, inputs, ("y",), {**attributes, **layout, "arithmetic": name}), tensors, ("x",)))


@pytest.mark.formats
@pytest.mark.parametrize("name", TORCH_AVERAGES)
def test_a_convolution_is_equal_for_every_sum(name: str) -> None:
    rng = np.random.default_rng(2)
    for sizes in ((2, 3), (4, 4), (2, 5), (8, 8)):
        quantization = Quantization.per_tensor(float(np.float32(rng.uniform(0.001, 0.2))), int(rng.integers(0, 256)))
        found = averaging_scale(name, quantization, sizes)
        assert found is not None
        zero, scale, missed = found
        total = np.arange(255 * sizes[0] * sizes[1] + 1)
        factor = quantization.scale[0] * np.float32(scale) / quantization.scale[0]
        steps = np.rint((total - sizes[0] * sizes[1] * zero).astype(np.float32) * factor) + zero
        assert np.count_nonzero(steps != torch_average(name, total, quantization, sizes, "uint8")) == missed
        assert not missed or (name.startswith("fbgemm") and sizes[1] in (3, 5) and missed < 0.02 * total.size)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_interpolations_take_ties_of_stored_integers_to_the_even_one(tmp_path: Path) -> None:
    """By a factor of 2, where all weights are sixteenths: sums are exact, and a twelfth of them are ties."""
    quantization = Quantization.per_tensor(0.0371, 117)
    tensors = [Tensor("x", "uint8", (1, 3, 4, 5), None, quantization), Tensor("y", "uint8", (1, 3, 8, 10), None, quantization)]
    tensors.append(Tensor("sizes", "int64", (2,), np.array([8, 10])))
    places = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", "data_format": "channels_first"}
    graph = _graph(Op("Resize", ("x", "sizes"), ("y",), {**places, "arithmetic": "torch"}), tensors, ("x",))
    qconvert.save(graph, tmp_path / "plain.onnx")
    assert qconvert.diff(graph, qconvert.load(tmp_path / "plain.onnx")) == []
    rng = np.random.default_rng(4)
    for suffix in _RUNTIMES:
        feed = {"x": rng.integers(0, 256, (1, 3, 4, 5)).astype(np.uint8)}
        found, said = _run(graph, tmp_path, suffix, feed)
        assert any(text.endswith("interpolations of stored integers, whose ties PyTorch takes to the even one: 1") for text in said)
        assert np.array_equal(found["y"], evaluate(graph, feed)["y"])
        graphs = graph.evolve(ops=[op.with_attributes(arithmetic="") for op in graph.ops])
        assert (evaluate(graphs, feed)["y"] != evaluate(graph, feed)["y"]).any()


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize("kind", ["LeakyRelu", "HardSwish", "Requantize"])
def test_litert_computes_curves_and_quantizations_on_real_values(kind: str, tmp_path: Path) -> None:
    """In all 256 integers, but for a tie."""
    quantizations = Quantization.per_tensor(0.0371, 117), Quantization.per_tensor(0.0293, 40)
    tensors = [Tensor(name, "uint8", (1, 256), None, quantization) for name, quantization in zip("xy", quantizations, strict=True)]
    graph = _graph(Op(kind, ("x",), ("y",), {"alpha": 0.137} if kind == "LeakyRelu" else {}), tensors, ("x",))
    feed = {"x": np.arange(256, dtype=np.uint8)[None]}
    wanted = evaluate(graph, feed)["y"].astype(np.int16)
    exact, _ = _run(graph, tmp_path, ".tflite", feed)
    fast, _ = _run(graph, tmp_path, ".tflite", feed, numerics="fast")
    assert np.count_nonzero(exact["y"] != wanted) <= 1
    assert np.count_nonzero(fast["y"] != wanted) > 1 or kind == "HardSwish"  # whose kernel differs with other quantizations


def _next_to_ties(scale: float, zero_point: int) -> Array:
    """Numbers a few last places from where PyTorch's fused sum gets another integer."""
    ties = np.arange(-2, 258)[:, None] - 0.5
    half = np.spacing(np.abs(ties).astype(np.float32)) / 2  # of a last place of the sum
    numbers = (
        ((ties - zero_point + half * np.array([-1, 0, 1])) * np.float64(np.float32(scale))).astype(np.float32).reshape(-1).view(np.int32)
    )
    return (numbers[:, None] + np.arange(-3, 4)).astype(np.int32).view(np.float32).reshape(1, -1)


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("suffix", _RUNTIMES)
@pytest.mark.parametrize(("scale", "zero_point"), [(0.018658, 114), (0.0371, 117), (1 / 255, 0), (0.25, 128), (3.7e-4, 255), (7.3, 1)])
def test_data_are_rounded_as_one_fused_sum(scale: float, zero_point: int, suffix: str, tmp_path: Path) -> None:
    """In the numbers next to every tie, where x / scale would be another integer for some; and in numbers of all sizes and infinities."""
    rng = np.random.default_rng(0)
    sizes = (10.0 ** rng.uniform(-30, 30, (1, 999)) * rng.choice([-1, 1], (1, 999))).astype(np.float32)
    ends = np.array([[np.inf, -np.inf, 3.4e38, -3.4e38]], np.float32)
    feed = {"x": np.concatenate([_next_to_ties(scale, zero_point), sizes, ends], 1)}
    tensors = [
        Tensor("x", "float32", feed["x"].shape),
        Tensor("y", "uint8", feed["x"].shape, None, Quantization.per_tensor(scale, zero_point)),
    ]
    graph = _graph(Op("Quantize", ("x",), ("y",), {"arithmetic": "fused"}), tensors, ("x",))
    found, said = _run(graph, tmp_path, suffix, feed)
    wanted = evaluate(graph, feed)["y"]
    assert any("fused sum" in text for text in said) and not any("but for" in text for text in said)
    assert np.array_equal(found["y"], wanted)
    assert (evaluate(graph.evolve(ops=[op.with_attributes(arithmetic="") for op in graph.ops]), feed)["y"] != wanted).any()
    _, said = _run(graph, tmp_path, suffix, feed, numerics="fast")
    assert not any("fused sum" in text for text in said)


@pytest.mark.torch
@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("scale", "zero_point"), [(0.018658, 114), (0.0371, 117), (1 / 255, 0), (3.7e-4, 255)])
def test_programs_round_data_by_a_reciprocal(scale: float, zero_point: int, tmp_path: Path) -> None:
    """The numbers next to every tie become what PyTorch's two operators make of them, in each runtime; divided, some become others."""
    import torch
    import torch.ao.quantization.fx._decomposed

    scale, data = float(np.float32(scale)), _next_to_ties(scale, zero_point)
    numbers = torch.from_numpy(data), scale, zero_point, 0, 255
    wanted = torch.ops.quantized_decomposed.quantize_per_tensor(*numbers, torch.uint8).numpy()
    trained = torch.fake_quantize_per_tensor_affine(*numbers).numpy()
    assert np.array_equal(np.rint(trained / np.float32(scale)) + zero_point, wanted)
    result = Tensor("y", "uint8", data.shape, None, Quantization.per_tensor(scale, zero_point))
    graph = _graph(Op("Quantize", ("x",), ("y",), {"arithmetic": "reciprocal"}), [Tensor("x", "float32", data.shape), result], ("x",))
    assert np.array_equal(evaluate(graph, {"x": data})["y"], wanted)
    for suffix in _RUNTIMES:
        assert np.array_equal(_run(graph, tmp_path, suffix, {"x": data})[0]["y"], wanted)
    assert [op["arithmetic"] for op in qconvert.load(tmp_path / "model.onnx").ops] == ["reciprocal"]
    qconvert.save(graph, tmp_path / "model.pt2")
    assert [op["arithmetic"] for op in qconvert.load(tmp_path / "model.pt2").ops] == ["reciprocal"]
    (found,) = runtimes()["torch"].open(ModelFile(tmp_path / "model.pt2", "rebuilt")).run({"x": data}).values()
    assert np.array_equal(found, wanted)
    plain = _run(graph, tmp_path, ".onnx", {"x": data}, numerics="fast")[0]["y"]
    assert (plain != wanted).any()


_GRIDS = [("uint8", 0.0371, 117), ("int8", 0.0371, -11), ("uint8", 1 / 255, 0), ("uint8", 1e-30, 3)]


def _first_rounding(dtype: str, scale: float, zero_point: int) -> Graph:
    result = Tensor("y", dtype, (1, 8), None, Quantization.per_tensor(scale, zero_point))
    return _graph(Op("Quantize", ("x",), ("y",), {"arithmetic": "fused"}), [Tensor("x", "float32", (1, 8)), result], ("x",))


@pytest.mark.formats
@pytest.mark.parametrize(("dtype", "scale", "zero_point"), _GRIDS)
def test_first_roundings_come_back_from_onnx(dtype: str, scale: float, zero_point: int, tmp_path: Path) -> None:
    """In float64, as a product without a zero point, and where there is no such form; of other constants none."""
    graph = _first_rounding(dtype, scale, zero_point)
    model = _written(graph, tmp_path)
    kinds = [node.op_type for node in model.graph.node if node.op_type in ("Cast", "Mul", "Add")]
    assert kinds == ([] if scale < 1e-20 else ["Mul"] if zero_point == 0 else ["Cast", "Mul", "Add", "Cast"])
    assert qconvert.diff(graph, qconvert.load(tmp_path / "model.onnx")) == []
    for constant in [item for item in model.graph.initializer if kinds and item.name.startswith(("y/reciprocal", "y/zero_point"))]:
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        found = next(item for item in changed.graph.initializer if item.name == constant.name)
        found.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(found) * 1.25, found.name))
        onnx.save(changed, tmp_path / "edited.onnx")
        kept = qconvert.load(tmp_path / "edited.onnx").ops
        assert len(kept) > 1 and not any(op.attributes.get("arithmetic") for op in kept)


@pytest.mark.formats
@pytest.mark.parametrize("shape", [(1, 8), ("batch", 8)])
@pytest.mark.parametrize(("dtype", "scale", "zero_point"), _GRIDS)
def test_first_roundings_come_back_from_tflite(
    dtype: str, scale: float, zero_point: int, shape: tuple[int | str, ...], tmp_path: Path
) -> None:
    """As a product in two parts; a note of another quantization, or of a scale with other factors, is not believed."""
    graph = _first_rounding(dtype, scale, zero_point)
    graph = graph.evolve(tensors=[replace(tensor, shape=shape) for tensor in graph.tensors.values()])
    qconvert.save(graph, tmp_path / "model.tflite")
    found = qconvert.load(tmp_path / "model.tflite")
    assert [(op.kind, op["arithmetic"]) for op in found.ops] == [("Quantize", "fused")]
    assert found["y"].quantization == graph["y"].quantization
    data = (tmp_path / "model.tflite").read_bytes()
    factor, other = (np.array([np.float32(1) / np.float32(each)], np.float32).tobytes() for each in (scale, scale * 1.25))
    assert (data.count(factor) > 0) == (scale > 1e-20)
    (tmp_path / "edited.tflite").write_bytes(data.replace(factor, other))
    if factor in data:
        kept = qconvert.load(tmp_path / "edited.tflite").ops
        assert len(kept) > 1 and not any(op.attributes.get("arithmetic") for op in kept)


@pytest.mark.formats
def test_quant_nodes_get_the_first_rounding_in_front_of_them(tmp_path: Path) -> None:
    """QONNX's Quant takes no arithmetic."""
    graph = _first_rounding("uint8", 0.0371, 117)
    qconvert.save(graph, tmp_path / "model.onnx", form="qonnx")
    feed = {"x": _next_to_ties(0.0371, 117)[:, :8]}
    wanted = (evaluate(graph, feed)["y"].astype(np.float32) - 117) * np.float32(0.0371)
    found = evaluate(qconvert.load(tmp_path / "model.onnx"), feed)
    (value,) = found.values()
    assert np.allclose(value if value.dtype == np.float32 else (value.astype(np.float32) - 117) * np.float32(0.0371), wanted, atol=1e-6)


@pytest.mark.formats
def test_a_split_product_misses_a_few_numbers_at_most() -> None:
    rng = np.random.default_rng(1)
    forms = [split_product(10 ** rng.uniform(-4, 1), int(rng.integers(1, 256))) for _ in range(200)]
    missed = [form.missed for form in forms if form is not None]
    assert len(missed) == 200 and max(missed) <= 32 and np.mean([each > 0 for each in missed]) < 0.2
    assert split_product(1e-30, 3) is None


@pytest.mark.formats
@pytest.mark.parametrize(("scale", "zero_point"), [(0.63233364, 3), (5.6621304, 1), (0.27155083, 49), (2.8378406, 210)])
def test_all_that_a_split_product_misses_is_counted(scale: float, zero_point: int) -> None:
    """Where the sum is small, or large, the numbers that round to a tie are others than those within 2^-18 of it."""
    form = split_product(scale, zero_point)
    assert form is not None
    x, border = np.unique(_next_to_ties(scale, zero_point)), np.float32(form.border)
    high = x + border - border
    large = high * np.float32(form.factors[0]) + np.float32(zero_point)
    steps = large + ((x - high) * np.float32(form.reciprocal) + high * np.float32(form.factors[1]))
    assert np.count_nonzero(np.clip(np.rint(steps), 0, 255) != torch_quantize(x, scale, zero_point)) <= form.missed


@pytest.mark.formats
def test_what_the_program_around_rounds_stays_outside(tmp_path: Path) -> None:
    quantization = Quantization.per_tensor(0.0371, 117)
    tensors = [
        Tensor("x", "float32", (1, 8)),
        Tensor("q", "uint8", (1, 8), None, quantization),
        Tensor("y", "uint8", (1, 8), None, quantization),
    ]
    ops = (Op("Quantize", ("x",), ("q",), {"arithmetic": "fused"}), Op("Relu", ("q",), ("y",)))
    graph = Graph("net", {t.name: t for t in tensors}, ops, ("x",), ("y",), metadata={SOURCE_KERNELS: "torch:qnnpack"})
    qconvert.save(graph, tmp_path / "model.qgraph")
    qconvert.convert(tmp_path / "model.qgraph", tmp_path / "model.onnx", io="integer")
    found = qconvert.load(tmp_path / "model.onnx")
    assert found["x"].dtype == "uint8" and len(found.ops) == 1


@pytest.mark.formats
def test_what_is_computed_is_divided_by_its_scale_so_that_onnxruntime_runs_it_on_integers(tmp_path: Path) -> None:
    """Float sums differ between the runtimes anyway, and a Mul after a Gemm would keep it in float."""
    source = Path(__file__).parents[2] / "fixtures" / "digits" / "fx_qat.pt"
    assert sum(op.attributes.get("arithmetic") == "reciprocal" for op in qconvert.load(source)) == 9
    qconvert.convert(source, tmp_path / "model.onnx", target="ort-x86-vnni")
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    scaled = [node.input[0] for node in nodes if node.op_type == "Mul"]
    assert scaled == ["x"]
