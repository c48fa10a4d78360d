"""The arithmetic of PyTorch's engines in numpy is that of its kernels, bit for bit, and checks run by these kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats.torch.written import needs_torch

import qconvert
from qconvert.arithmetic import ADDITIONS, qnnpack_bias, torch_average, torch_mean, torch_quantize
from qconvert.evaluate import evaluate
from qconvert.graph import Graph, Op, Quantization, Tensor
from qconvert.graph.metadata import SOURCE_ENGINE
from qconvert.plugins import ModelFile, runtimes
from qconvert.runtimes.onnx_rewrites import has_vnni
from qconvert.runtimes.torch import open_model
from qconvert.runtimes.torch_engines import use_engine

_FIXTURES = Path(__file__).parents[2] / "fixtures" / "torch"
_QNNPACK = _FIXTURES / "vision" / "eager_qnnpack_frozen.pt"

pytestmark = [pytest.mark.torch, needs_torch]


def _float32(value: float) -> float:
    return float(np.float32(value))


def _quantized(stored: Any, scale: float, zero_point: int) -> Any:
    import torch

    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(np.array(stored, np.uint8)), scale, zero_point)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("engine", ["qnnpack", "fbgemm", "x86", "onednn"])
def test_additions_of_all_pairs(engine: str) -> None:
    import torch

    rng = np.random.default_rng(3)
    codes = np.arange(256)
    pairs = np.broadcast_arrays(codes[:, None], codes[None, :])
    for index in range(24):
        scales = [_float32(0.02 * 2 ** rng.uniform(-3, 1)) for _ in range(3)]
        if index % 6 == 0:
            scales[1] = scales[0]
        points = [0, 0, 0] if index % 5 == 0 else [int(point) for point in rng.integers(0, 256, 3)]
        quantizations = [Quantization.per_tensor(*item) for item in zip(scales, points, strict=True)]
        with use_engine(engine):
            operands = [_quantized(stored, *item) for stored, *item in zip(pairs, scales[:2], points[:2], strict=True)]
            found = torch.ops.quantized.add(*operands, scales[2], points[2]).int_repr().numpy()
        name = "qnnpack" if engine == "qnnpack" else "fbgemm"
        assert np.array_equal(ADDITIONS[name](*pairs, (quantizations[0], quantizations[1]), quantizations[2], "uint8"), found), (
            scales,
            points,
        )
        signed = [quantization.shift_zero_point(-128) for quantization in quantizations]
        moved = ADDITIONS[name](*(stored - 128 for stored in pairs), (signed[0], signed[1]), signed[2], "int8")
        assert np.array_equal(moved.astype(np.int64) + 128, found)


def _next_to_ties(scale: float, zero_point: int) -> Any:
    """Numbers a few last places from where the fused sum becomes another integer."""
    ties = np.arange(-2, 258)[:, None] - 0.5 - zero_point + np.array([-(2.0**-18), 0, 2.0**-18])
    numbers = (ties * scale).astype(np.float32).reshape(-1).view(np.int32)
    return (numbers[:, None] + np.arange(-3, 4)).astype(np.int32).view(np.float32).reshape(1, -1)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_data_on_a_quantization(tmp_path: Path) -> None:
    """The arithmetic, the evaluator and a program that is written give the integers of torch.quantize_per_tensor."""
    import torch

    rng = np.random.default_rng(5)
    for index in range(40):
        scale, point = _float32(10 ** rng.uniform(-4, 1)), int(rng.integers(0, 256))
        data = _next_to_ties(scale, point)
        wanted = torch.quantize_per_tensor(torch.from_numpy(data), scale, point, torch.quint8).int_repr().numpy()
        assert np.array_equal(torch_quantize(data, scale, point), wanted)
        if index > 3:
            continue
        for dtype, low in (("uint8", 0), ("int8", -128)):
            result = Tensor("y", dtype, data.shape, None, Quantization.per_tensor(scale, point + low))
            op = Op("Quantize", ("x",), ("y",), {"arithmetic": "fused"})
            graph = Graph("net", {"x": Tensor("x", "float32", data.shape), "y": result}, (op,), ("x",), ("y",))
            assert np.array_equal(evaluate(graph, {"x": data})["y"].astype(np.int64) - low, wanted)
            qconvert.save(graph, tmp_path / "model.pt2", force=True)
            found = open_model(ModelFile(tmp_path / "model.pt2", "rebuilt")).run({"x": data})["y"]
            assert np.array_equal(found.astype(np.int64) - low, wanted)


#: Engine, kernel, whether channels are stored last -> the arithmetic.
_AVERAGES = [
    ("qnnpack", "windows", False, "qnnpack_average"),
    ("qnnpack", "windows", True, "qnnpack_average"),
    ("qnnpack", "adaptive", True, "qnnpack_average"),
    ("qnnpack", "mean", False, "qnnpack_average"),
    ("fbgemm", "windows", False, "fbgemm_windows"),
    ("x86", "windows", True, "fbgemm_vectors"),
    ("fbgemm", "adaptive", False, "fbgemm_frames"),
    ("onednn", "adaptive", True, "fbgemm_adaptive"),
    ("fbgemm", "mean", False, "fbgemm_means"),
]


@pytest.mark.torch
@pytest.mark.cross_section
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("engine", "kernel", "last", "name"), _AVERAGES)
def test_averages(engine: str, kernel: str, last: bool, name: str) -> None:
    """Windows of even numbers of elements, of which a sixth or more are ties, on scales whose quotients are not exact."""
    import torch

    rng = np.random.default_rng(5)
    for index in range(30):
        sizes = [(2, 3), (2, 2), (3, 4), (2, 5), (1, 6), (7, 7)][index % 6]
        scale, zero_point = _float32(rng.uniform(0.001, 0.2)), int(rng.integers(0, 256))
        space = (sizes[0] * 3, sizes[1] * 3) if kernel == "windows" else sizes
        stored = rng.integers(0, 256, (2, 32, *space))
        data = _quantized(stored, scale, zero_point)
        data = data.contiguous(memory_format=torch.channels_last) if last else data
        with use_engine(engine):
            result = {
                "windows": lambda data, sizes: torch.nn.functional.avg_pool2d(data, sizes),
                "adaptive": lambda data, sizes: torch.nn.functional.adaptive_avg_pool2d(data, (1, 1)),
                "mean": lambda data, sizes: data.mean([2, 3], True),
            }[kernel](data, sizes)
        windows = np.lib.stride_tricks.sliding_window_view(stored, sizes, (2, 3))[:, :, :: sizes[0], :: sizes[1]]
        quantization, total = Quantization.per_tensor(scale, zero_point), windows.sum((-1, -2))
        assert np.array_equal(torch_average(name, total, quantization, sizes, "uint8"), result.int_repr().numpy()), (
            sizes,
            scale,
            zero_point,
        )


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("count", [2, 4, 12, 50])
def test_means_over_other_axes_than_the_last(count: int) -> None:
    """PyTorch dequantizes them first. Its order of adding depends on the shape, so that a few ties may differ; the exact mean, with ties to
    the even number of steps, differs in most ties."""
    rng = np.random.default_rng(5)
    missed, plain, elements = 0, 0, 0
    for index in range(30):
        scale, zero_point = _float32(rng.uniform(0.001, 0.2)), int(rng.integers(0, 256))
        stored = rng.integers(0, 256, (2, count, (16, 64, 96)[index % 3]))
        found = _quantized(stored, scale, zero_point).mean([1]).int_repr().numpy()
        quantization = Quantization.per_tensor(scale, zero_point)
        missed += np.count_nonzero(torch_mean(stored, (1,), quantization, "uint8", keepdims=False) != found)
        signed = torch_mean(stored - 128, (1,), quantization.shift_zero_point(-128), "int8", keepdims=False)
        missed += np.count_nonzero(signed.astype(np.int64) + 128 != found)
        exact = np.rint((stored.sum(1) - count * zero_point) / count) + zero_point
        plain, elements = plain + np.count_nonzero(exact != found), elements + found.size
    assert missed < 0.02 * elements and (missed == 0 or count > 4)
    assert plain > 0.2 / count * elements and missed / 2 < 0.4 * plain


@pytest.mark.torch
@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("shape", "axes"), [((2, 12, 64), [1]), ((4, 64), [0]), ((2, 4, 3, 32), [2]), ((2, 4, 32), [0, 1])])
def test_a_file_with_a_mean(shape: tuple[int, ...], axes: list[int], tmp_path: Path) -> None:
    """The program that a check rebuilds gives the file's integers, and results of a conversion give them but for a few ties."""
    import torch

    class Net(torch.nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            q = torch.quantize_per_tensor(x, 0.0937, 77, torch.quint8)
            return torch.mean(q, axes).dequantize()

    source, feed = tmp_path / "mean.pt", np.random.default_rng(3).normal(3, 4, (200, *shape)).astype(np.float32)
    torch.jit.save(torch.jit.trace(Net(), torch.from_numpy(feed[0])), source)
    rebuilt, trusted = (open_model(ModelFile(source, kernels, {"engine": "x86"})) for kernels in ("rebuilt", "trusted"))
    name, output = *rebuilt.inputs, *rebuilt.outputs
    wanted = np.stack([trusted.run({name: x})[output] for x in feed])
    assert np.array_equal(np.stack([rebuilt.run({name: x})[output] for x in feed]), wanted)
    for suffix, runtime, kernels in ((".onnx", "onnxruntime", "optimized"), (".tflite", "litert", "default")):
        result = tmp_path / f"mean{suffix}"
        qconvert.convert(source, result)
        model = runtimes()[runtime].open(ModelFile(result, kernels))
        found = np.stack([model.run(dict.fromkeys(model.inputs, x))[next(iter(model.outputs))] for x in feed])
        assert np.abs(found - wanted).max() < 0.0938 and (found != wanted).mean() < 0.01
        assert qconvert.check(source, result, samples=3).verdict == "passed"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_qnnpack_rounds_the_bias_first() -> None:
    """A layer with weights of 0, whose result resolves single steps of the accumulator."""
    import torch

    rng = np.random.default_rng(7)
    data, weights = _float32(0.013), _float32(0.0021)
    scale = np.float32(data) * np.float32(weights)
    bias = (rng.uniform(-100, 100, 512) * scale).astype(np.float32)
    with use_engine("qnnpack"):
        zeros = torch._make_per_tensor_quantized_tensor(torch.zeros((512, 4, 1, 1), dtype=torch.int8), weights, 0)
        packed = torch.ops.quantized.conv2d_prepack(zeros, torch.from_numpy(bias), [1, 1], [0, 0], [1, 1], 1)
        found = torch.ops.quantized.conv2d(_quantized(np.zeros((1, 4, 1, 1)), data, 0), packed, float(scale), 128).int_repr().numpy()
    assert np.array_equal(qnnpack_bias(bias, scale) + 128, found.reshape(-1))


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["qnnpack", "fbgemm", "x86", "onednn"])
def test_programs_written_anew_give_what_the_file_gives(engine: str) -> None:
    """Of a network with layers, an addition, averages and a join of quantizations, in every element."""
    graph = qconvert.load(_QNNPACK, engine=engine)
    shapes = {name: graph[name].static_shape for name in graph.inputs}
    rng = np.random.default_rng(11)
    feed = {name: rng.normal(0, 1, shape or (1, 3, 12, 12)).astype(np.float32) for name, shape in shapes.items()}
    if engine != "qnnpack" and not has_vnni():
        pytest.skip("kernels of fbgemm saturate on CPUs without VNNI, in orders of their own")
    models = [open_model(ModelFile(_QNNPACK, kernels, {"engine": engine})) for kernels in ("rebuilt", "trusted")]
    again, trusted = (model.run(feed) for model in models)
    assert all(f"engine {engine}" in model.note for model in models)
    assert all(np.array_equal(again[name], trusted[name]) for name in graph.outputs)


@pytest.mark.torch
@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_check_takes_the_engine_of_the_conversion(tmp_path: Path) -> None:
    """Every operator is equal by qnnpack's own kernels, in both runtimes; by another engine the biases are not the source's."""
    for result in (tmp_path / "model.onnx", tmp_path / "model.tflite"):
        report = qconvert.convert(_QNNPACK, result, engine="qnnpack", input_shape="2,3,12,12")
        assert any("PyTorch's engine qnnpack, as asked for" in change.text for change in report.changes)
        found = qconvert.check(_QNNPACK, result, per_op=True, samples=3)
        assert found.verdict == "passed" and all(op.equal == 1 for op in found.operators), [op for op in found.operators if op.equal < 1]
        assert any("engine qnnpack" in text for text in found.machine)
    assert qconvert.check(_QNNPACK, result, samples=2, engine="fbgemm").verdict == "not equal"


def test_the_file_hints_at_its_engine() -> None:
    assert qconvert.load(_QNNPACK).metadata[SOURCE_ENGINE].startswith("qnnpack, since")
    assert qconvert.load(_FIXTURES / "vision" / "fx_fbgemm_frozen.pt").metadata[SOURCE_ENGINE].startswith("x86, PyTorch's default")
    assert SOURCE_ENGINE not in qconvert.load(_FIXTURES / "small" / "pt2e_xnnpack_batch.pt2").metadata


@pytest.mark.torch
@pytest.mark.parametrize("engine", ["qnnpack", "fbgemm"])
def test_a_written_program_has_the_engines_roundings(engine: str, tmp_path: Path) -> None:
    """In operators of PyTorch that know no engine, in every element of every quantized tensor."""
    from qconvert.evaluate import evaluate

    graph = qconvert.load(_QNNPACK, engine=engine, input_shape="2,3,12,12")
    inner = tuple(op.outputs[0] for op in graph.ops if op.outputs[0] not in graph.outputs)
    graph = graph.evolve(outputs=(*graph.outputs, *inner))
    feed = {name: np.random.default_rng(1).normal(0, 1, (2, 3, 12, 12)).astype(np.float32) for name in graph.inputs}
    wanted = evaluate(graph, feed)
    module = qconvert.to_torch(graph)
    import torch

    found = module(*[torch.from_numpy(value) for value in feed.values()])
    for name, value in zip(graph.outputs, found, strict=True):
        assert np.array_equal(value.numpy(), wanted[name]), name


@pytest.mark.torch
@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("suffix", [".onnx", ".tflite"])
def test_real_biases_are_kept_where_the_user_wants_it(suffix: str, tmp_path: Path) -> None:
    """x86 adds real biases: integer kernels differ by one here and there, layers in float nowhere."""
    source, shares = _FIXTURES / "vision" / "fx_fbgemm_frozen.pt", {}
    for biases in ("round", "keep"):
        qconvert.convert(source, tmp_path / f"model{suffix}", engine="fbgemm", input_shape="2,3,12,12", biases=biases, force=True)
        found = qconvert.check(source, tmp_path / f"model{suffix}", per_op=True, samples=8)
        assert found.verdict == "passed"
        shares[biases] = [op.equal for op in found.operators if "conv2d" in op.operator]
    assert min(shares["round"]) < 1 == min(shares["keep"])


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_networks_in_training_are_equal_with_real_biases(tmp_path: Path) -> None:
    """Fake quantization with affine weights, which LiteRT's integer kernels do not take; float values of them are PyTorch's."""
    source = next(iter(sorted((_FIXTURES / "single").glob("qat_*.pt2"))))
    values = np.load(source.with_suffix(".npz"))
    for suffix, name, kernels in ((".onnx", "onnxruntime", "optimized"), (".tflite", "litert", "default")):
        qconvert.convert(source, tmp_path / f"model{suffix}", biases="keep")
        model = runtimes()[name].open(ModelFile(tmp_path / f"model{suffix}", kernels))
        (found,) = model.run(dict.fromkeys(model.inputs, values["input_0"])).values()
        assert np.abs(found.astype(np.float64) - values["output_0"]).max() < 1e-5
