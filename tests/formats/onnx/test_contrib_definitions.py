"""onnxruntime's own operators in TFLite: what stands in their place gives what onnxruntime's kernels give."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper
from tflite_models import run_litert

from qconvert import QConvertError, check, convert

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 16, 4
RNG = np.random.default_rng(0)


@dataclass
class Case:
    """A node: its inputs in turn, arrays or tensors, None for none; those named in `given` are inputs of the graph."""

    op: str
    inputs: dict[str, Any]
    given: str
    outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)
    result: tuple[type, ...] = (np.float32,)


def real(*shape: int, spread: float = 1.0) -> Any:
    return (spread * RNG.standard_normal(shape)).astype(np.float32)


def stored(*shape: int) -> Any:
    return RNG.integers(60, 190, shape).astype(np.uint8)


def attention(given: str = "x", outputs: int = 1, weights: int = 3 * WIDTH, mask: Any = None, past: Any = None, **attributes: Any) -> Case:
    inputs = {
        "x": real(BATCH, LENGTH, WIDTH), "w": real(WIDTH, weights, spread=0.2), "b": real(weights), "mask": mask, "past": past,
    }  # fmt: skip
    return Case("Attention", inputs, given, outputs, {"num_heads": HEADS, **attributes}, (np.float32,) * outputs)


def quantized_attention(mask: Any = None, **attributes: Any) -> Case:
    inputs = {
        "x": stored(BATCH, LENGTH, WIDTH), "w": stored(WIDTH, 3 * WIDTH), "b": real(3 * WIDTH), "xs": np.float32(0.02),
        "ws": np.float32(0.004), "mask": mask, "xz": np.uint8(130), "wz": np.uint8(120),
    }  # fmt: skip
    return Case("QAttention", inputs, "x", attributes={"num_heads": HEADS, **attributes})


def heads(bias: bool = False, mask: Any = None, keys: int = 7, **attributes: Any) -> Case:
    inputs = {
        "q": real(BATCH, LENGTH, WIDTH), "k": real(BATCH, keys, WIDTH), "v": real(BATCH, keys, WIDTH),
        "b": real(3 * WIDTH) if bias else None, "mask": mask,
    }  # fmt: skip
    return Case("MultiHeadAttention", inputs, "q k v", attributes={"num_heads": HEADS, **attributes})


def embedding(mask: Any = None, segments: bool = True, quantized: bool = False, outputs: int = 3) -> Case:
    kinds = (np.float32, np.int32, np.float32)[:outputs]
    sizes = {"words": 9, "places": LENGTH + 2, "types": 2}
    inputs: dict[str, Any] = {
        "ids": RNG.integers(0, 9, (BATCH, LENGTH)).astype(np.int32),
        "segments": RNG.integers(0, 2, (BATCH, LENGTH)).astype(np.int32) if segments else None,
    }
    for name, rows in sizes.items():
        inputs[name] = (stored if quantized else real)(rows, WIDTH) if segments or name != "types" else None
    for name in ("gamma", "beta"):
        inputs[name] = (stored if quantized else real)(WIDTH)
    inputs["mask"] = mask
    if quantized:
        inputs |= {f"scale_{index}": np.float32(0.01 + index / 500) for index in range(5)}
        inputs |= {f"point_{index}": np.uint8(118 + index) for index in range(5)}
    return Case(
        "QEmbedLayerNormalization" if quantized else "EmbedLayerNormalization", inputs, "ids segments" if segments else "ids",
        outputs, {"epsilon": 1e-12}, kinds,
    )  # fmt: skip


def gathered(dtype: str, axis: int, along: int, *, bits: int = 4, points: bool = True, shape: tuple[int, ...] = (6, 40)) -> Case:
    sizes = list(shape)
    sizes[along] = -(-sizes[along] // 16)
    scales = RNG.uniform(0.01, 0.1, sizes).astype(np.float32)
    low, high = {"uint8": (0, 256), "uint4": (0, 16), "int4": (-8, 8)}[dtype]
    halves = dtype == "uint8" and bits == 4
    width = [*shape[:-1], shape[-1] // 2] if halves else shape
    blocks = [*sizes[:-1], -(-sizes[-1] // 2)] if halves else sizes
    made = [
        helper.make_tensor(name, getattr(TensorProto, dtype.upper()), list(size), RNG.integers(low, high, tuple(size)).ravel().tolist())
        for name, size in (("data", width), ("points", blocks))
    ]
    indices = RNG.integers(0, shape[axis], (2, 3)).astype(np.int64)
    inputs = {"data": made[0], "i": indices, "scales": scales, "points": made[1] if points else None}
    attributes = {"gather_axis": axis, "quantize_axis": along, "block_size": 16, "bits": bits}
    return Case("GatherBlockQuantized", inputs, "i", attributes=attributes)


def blocks(bits: int, *, points: str = "", groups: bool = False, level: int = 0, bias: bool = False, block: int = 32) -> Case:
    depth, columns, each = 72, 5, 8 // bits
    count = -(-depth // block)
    inputs: dict[str, Any] = {
        "x": real(3, depth),
        "b": RNG.integers(0, 256, (columns, count, block // each)).astype(np.uint8),
        "s": RNG.uniform(0.01, 0.1, (columns, count)).astype(np.float32),
        "z": {
            "": None, "packed": RNG.integers(0, 256, (columns, -(-count // each))).astype(np.uint8),
            "real": RNG.uniform(0, 2**bits - 1, (columns, count)).astype(np.float32),
        }[points],
        "g": RNG.permutation(np.arange(depth) // block).astype(np.int32) if groups else None,
        "bias": real(columns) if bias else None,
    }  # fmt: skip
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    return Case("MatMulNBits", inputs, "x", attributes=attributes)


def quantization(name: str, scale: float, point: int) -> dict[str, Any]:
    return {f"{name}s": np.float32(scale), f"{name}z": np.uint8(point)}


def qgemm(bias: tuple[int, ...], *, quantized: bool = True, **attributes: Any) -> Case:
    a, b = (6, 4) if attributes.get("transA") else (4, 6), (5, 6) if attributes.get("transB") else (6, 5)
    inputs = {
        "a": stored(*a), **quantization("a", 0.02, 120), "b": stored(*b), **quantization("b", 0.01, 125),
        "c": RNG.integers(-5000, 5000, bias).astype(np.int32), **(quantization("y", 0.05, 128) if quantized else {}),
    }  # fmt: skip
    return Case("QGemm", inputs, "a", attributes=attributes, result=(np.uint8 if quantized else np.float32,))


def one(op: str, shape: tuple[int, ...], scale: float, point: int, **attributes: Any) -> Case:
    inputs = {"a": stored(*shape), **quantization("a", 0.05, 120), **quantization("y", scale, point)}
    return Case(op, inputs, "a", attributes=attributes, result=(np.uint8,))


def convolution() -> Case:
    inputs = {
        "a": stored(1, 6, 5, 4), **quantization("a", 0.02, 120), "w": stored(6, 2, 3, 3), **quantization("w", 0.01, 125),
        **quantization("y", 0.03, 100),
    }  # fmt: skip
    return Case("QLinearConv", inputs, "a", attributes={"channels_last": 1, "group": 2, "pads": [1, 0, 1, 1]}, result=(np.uint8,))


WINDOW = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32)
CASES = {
    "attention": attention(),
    "attention, scale": attention(scale=0.3),
    "attention, causal": attention(unidirectional=1),
    "attention, mask": attention("x mask", mask=MASK),
    "attention, mask of ends, causal": attention("x mask", mask=np.array([4, 2], np.int32), unidirectional=1),
    "attention, mask of rows": attention("x mask", mask=np.repeat(MASK[:, None], LENGTH, 1)),
    "attention, mask of nothing": attention(mask=np.ones((BATCH, 1), np.int32)),
    "attention, other sizes": attention(weights=28, qkv_hidden_sizes=[8, 8, 12]),
    "attention, past": attention("x past", 2, past=real(2, BATCH, HEADS, 3, WIDTH // HEADS), unidirectional=1),
    "quantized attention": quantized_attention(),
    "quantized attention, mask, causal": quantized_attention(MASK, unidirectional=1),
    "heads": heads(),
    "heads, bias, causal": heads(True, keys=LENGTH, unidirectional=1),
    "heads, mask": heads(mask=np.array([[1] * 6 + [0], [1] * 3 + [0] * 4], np.int32)),
    "embedding": embedding(),
    "embedding, mask": embedding(MASK),
    "embedding, no segments": embedding(segments=False),
    "embedding, quantized": embedding(MASK, quantized=True, outputs=2),
    **{f"gathered {dtype}": gathered(dtype, 0, 1) for dtype in ("uint4", "int4", "uint8")},
    **{f"gathered {dtype}, no points": gathered(dtype, 0, 1, points=False) for dtype in ("uint4", "int4", "uint8")},
    **{f"gathered uint8, 8 bits, {points}": gathered("uint8", 0, 1, bits=8, points=points) for points in (True, False)},
    "gathered after": gathered("int4", 1, 0, shape=(40, 6)),
    "gathered along": gathered("uint4", 1, 1),
    "gathered, rank 3": gathered("uint4", 1, 2, shape=(4, 3, 40)),
    **{f"blocks of {bits}, real points": blocks(bits, points="real") for bits in (2, 4)},
    **{f"blocks of {bits}, level {level}": blocks(bits, points="packed", level=level) for bits in (2, 4, 8) for level in (1, 2, 3)},
    **{f"Gemm, alpha {alpha}": qgemm((5,), alpha=alpha, transA=1) for alpha in (0.0, -0.5)},
    "Gemm, real, alpha -2": qgemm((5,), quantized=False, alpha=-2.0, transB=1),
    **{f"Gemm, bias of {sizes}": qgemm(sizes, alpha=0.5) for sizes in ((4, 5), (4, 1), (1,), ())},
    "Softmax of several axes": one("QLinearSoftmax", (2, 3, 4), 1 / 256, 0, axis=1, opset=11),
    "Conv of channels last": convolution(),
    "AveragePool of channels last": one("QLinearAveragePool", (1, 7, 6, 3), 0.05, 120, channels_last=1, **WINDOW),
    "GlobalAveragePool of channels last": one("QLinearGlobalAveragePool", (1, 7, 6, 3), 0.02, 100, channels_last=1),
    "MaxPool of channels last": Case("NhwcMaxPool", {"a": stored(1, 7, 6, 3)}, "a", attributes=WINDOW, result=(np.uint8,)),
    "Gemm and Relu": Case(
        "FusedGemm", {"a": real(3, 8), "b": real(5, 8), "c": real(5)}, "a", attributes={"transB": 1, "alpha": 0.5, "activation": "Relu"}
    ),
    "Trilu": Case("Trilu", {"a": real(4, 5)}, "a", attributes={"upper": 0}),
    "Pad": Case("Pad", {"a": real(2, 3), "p": np.array([0, 1, 2, 0], np.int64), "v": np.float32(2)}, "a"),
    "ExpandDims": Case("ExpandDims", {"a": real(2, 3), "i": np.int32(-1)}, "a"),
    "GatherND": Case("GatherND", {"a": real(3, 4, 2), "i": np.array([[0, 1], [2, 3]], np.int64)}, "a"),
    "blocks, groups": blocks(4, groups=True, bias=True),
    "blocks, groups, real points": blocks(4, groups=True, points="real", block=16),
}  # fmt: skip


def model(case: Case, *, sizes: bool = True) -> tuple[bytes, dict[str, Any]]:
    """The model, whose outputs have no stated types, and the values of its inputs."""
    given = case.given.split()
    feed = {name: np.asarray(case.inputs[name]) for name in given}
    values = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(data.dtype),
            list(data.shape) if sizes else [*["n", "m" if name not in "kv" else "k"][: data.ndim], *data.shape[2:]],
        )
        for name, data in feed.items()
    ]
    constants = []
    for name, data in case.inputs.items():
        if data is not None and name not in given:
            constants.append(data if isinstance(data, TensorProto) else numpy_helper.from_array(np.asarray(data), name))
    names = [name if data is not None else "" for name, data in case.inputs.items()]
    while not names[-1]:
        names.pop()
    outputs = [f"y{index}" for index in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, domain="com.microsoft", **case.attributes)
    graph = helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info(name) for name in outputs], constants)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()), feed


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("name", CASES)
def test_a_definition_gives_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    data, feed = model(case)
    source, result, again = tmp_path / "m.onnx", tmp_path / "m.tflite", tmp_path / "again.onnx"
    source.write_bytes(data)
    wanted = onnx_models.run(data, feed, False)
    convert(source, result)
    for one, other, dtype in zip(wanted, run_litert(result.read_bytes(), list(feed.values())), case.result, strict=True):
        assert one.shape == other.shape and one.dtype == dtype and (dtype == np.int32 or np.ptp(one) > 0.1 or name == "Gemm, alpha 0.0")
        steps = 1 if name.startswith("AveragePool") else 0  # a tie, which TFLite rounds away from zero
        np.testing.assert_allclose(
            other.astype(np.float64), one.astype(np.float64), rtol=0, atol=steps or 3e-6 * max(1.0, float(np.abs(one).max()))
        )
    convert(source, again)
    for one, other in zip(wanted, onnx_models.run(again.read_bytes(), feed, False), strict=True):
        np.testing.assert_array_equal(other, one)  # in another ONNX file the node is what it was


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(
    "name", ["attention, causal", "attention, mask", "attention, mask of ends, causal", "heads", "embedding, mask", "gathered int4"]
)
def test_sizes_may_be_known_at_run_time_alone(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    data, feed = model(case, sizes=False)
    (tmp_path / "m.onnx").write_bytes(data)
    convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    wanted = onnx_models.run(data, feed, False)
    for one, other in zip(wanted, run_litert((tmp_path / "m.tflite").read_bytes(), list(feed.values())), strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=3e-6 * max(1.0, float(np.abs(one).max())))


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_product_of_less_accuracy_is_named_so(bits: int, tmp_path: Path) -> None:
    """onnxruntime rounds the data to 8 bits in blocks there, LiteRT does not."""
    data, feed = model(blocks(bits, points="packed", level=4, bias=True))
    (tmp_path / "m.onnx").write_bytes(data)
    convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    (wanted,) = onnx_models.run(data, feed, False)
    (found,) = run_litert((tmp_path / "m.tflite").read_bytes(), list(feed.values()))
    assert 0 < np.abs(wanted - found).max() < 0.02 * np.abs(wanted).max()
    (finding,) = check(tmp_path / "m.onnx", tmp_path / "m.tflite").operators
    assert (finding.verdict, finding.reason) == ("dynamic range", "data quantized in blocks compared with float data")


HOSTILE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("attention", {"num_heads": 0}, {}),
    ("attention", {"num_heads": 2**40}, {}),
    ("attention", {"qkv_hidden_sizes": [2**40, -(2**40), 48]}, {}),
    ("attention", {"do_rotary": 1}, {}),
    ("attention", {}, {"w": np.zeros(48, np.float32)}),
    ("attention, mask", {}, {"mask": np.zeros((1, 1, 9, 9), np.int32)}),
    ("heads", {"num_heads": 3}, {}),
    ("heads", {}, {"k": np.zeros((2, 3, 4, 5, 6), np.float32)}),
    ("embedding", {}, {"places": np.zeros((), np.float32)}),
    ("gathered int4", {"block_size": 0}, {}),
    ("gathered int4", {"block_size": 2**60}, {}),
    ("gathered int4", {"gather_axis": 7}, {}),
    ("gathered uint8", {"bits": -1}, {}),
    ("blocks, groups", {}, {"g": np.full(72, 99, np.int32)}),
    ("blocks, groups", {}, {"g": np.zeros(3, np.int32)}),
    ("blocks, groups", {"weight_prepacked": 1}, {}),
    ("blocks, groups", {"K": 2**50, "block_size": 2**30}, {}),
    ("Gemm, bias of (4, 5)", {}, {"c": np.zeros((3, 7), np.int32)}),
    ("Softmax of several axes", {"axis": 9}, {}),
    ("Conv of channels last", {"group": 0}, {}),
    ("ExpandDims", {}, {"i": np.int32(7)}),
    ("blocks of 4, real points", {}, {"z": np.zeros(3, np.float32)}),
]


@pytest.mark.formats
@pytest.mark.parametrize(("name", "attributes", "inputs"), HOSTILE)
def test_what_a_definition_does_not_cover_is_refused_by_name(
    name: str, attributes: dict[str, Any], inputs: dict[str, Any], tmp_path: Path
) -> None:
    case = CASES[name]
    changed = Case(case.op, {**case.inputs, **inputs}, case.given, case.outputs, {**case.attributes, **attributes})
    data, _ = model(changed)
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(QConvertError):
        convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
    assert not (tmp_path / "m.tflite").exists()


@pytest.mark.formats
def test_packed_zero_points_beside_groups_are_refused(tmp_path: Path) -> None:
    """onnxruntime's kernel leaves them out there, against its own documentation."""
    data, _ = model(blocks(4, groups=True, points="packed"))
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(QConvertError):
        convert(tmp_path / "m.onnx", tmp_path / "m.tflite")
