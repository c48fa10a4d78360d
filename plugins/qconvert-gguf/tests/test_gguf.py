"""Weights in .gguf files, there and back, against the gguf package's own quantizers, and in onnxruntime."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from qconvert_gguf.blocks import KINDS, TYPES, WRITTEN, pack_weight, unpack_weight
from qconvert_gguf.container import read_header, tensor_bytes

import qconvert
from qconvert.plugin import (
    BlockWeight,
    FileAccessError,
    InvalidModelError,
    OptionError,
    QConvertError,
    UnsupportedError,
    evaluate,
    fit_weight,
    map_file,
)

RNG = np.random.default_rng(20260101)
#: Where the float16 numbers of a block begin, so that random bytes become finite ones.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "MXFP4": (),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
#: Types with a minimum in each block.
MINIMA = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")


def random_blocks(random: np.random.Generator, type: str, rows: int, count: int) -> np.ndarray:
    """Bytes of `rows` rows of `count` blocks, any but for float16 numbers and powers of two, which are ordinary ones."""
    _, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[type]]
    data = random.integers(0, 256, (rows * count, size), np.uint8)
    for first in HALVES[type]:
        data[:, first : first + 2] = random.normal(0, 0.1, (rows * count, 1)).astype("<f2").view(np.uint8)
    if type == "MXFP4":
        data[:, 0] = random.integers(100, 150, rows * count)
    return data.reshape(rows, -1)


def network(folder: Path, weights: dict[str, np.ndarray]) -> Path:
    """An embedding, a product x @ w, one with weights turned by a Transpose, and a bias."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["h"]),
        helper.make_node("Transpose", ["v"], ["vt"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "vt"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 8])],
        [numpy_helper.from_array(data, name) for name, data in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "float.onnx")
    return folder / "float.onnx"


def random_weights() -> dict[str, np.ndarray]:
    shapes = {"table": (10, 64), "w": (64, 32), "v": (8, 32), "b": (8,)}
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def turned(name: str, data: np.ndarray) -> np.ndarray:
    """Weights as GGUF has them: `w` is the right side of a product."""
    return data.T if name == "w" else data


def quantized(path: Path, weights: dict[str, np.ndarray], type: str, names: dict[str, str] | None = None) -> dict[str, np.ndarray]:
    """A file by the gguf package, and the values in it, as the network has them."""
    writer, values = GGUFWriter(path, "test"), {}
    writer.add_array("test.words", ["a", "bc"] * 10)
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_uint32("test.count", 7)
    for name, data in weights.items():
        kind = GGMLQuantizationType[type] if data.ndim > 1 else GGMLQuantizationType.F32
        stored = gguf.quantize(np.ascontiguousarray(turned(name, data)), kind)
        values[name] = turned(name, gguf.dequantize(stored, kind))
        writer.add_tensor((names or {}).get(name, name), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def expected(values: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    wide = {name: data.astype(np.float64) for name, data in values.items()}
    return wide["table"][ids] @ wide["w"] @ wide["v"].T + wide["b"]


def stored_bytes(path: Path) -> dict[str, tuple[str, bytes]]:
    return {item.name: (item.tensor_type.name, item.data.tobytes()) for item in GGUFReader(path).tensors}


IDS = np.array([0, 7, 3])


@pytest.mark.parametrize("type", [name for name in WRITTEN if name != "MXFP4"])
def test_integers_scales_and_minima_come_in_and_go_out_bit_for_bit(type: str, tmp_path: Path) -> None:
    weights = random_weights()
    values = quantized(tmp_path / "w.gguf", weights, type)
    graph = qconvert.load(tmp_path / "w.gguf", graph=str(network(tmp_path, weights)))
    (found,) = evaluate(graph, {"ids": IDS}).values()
    np.testing.assert_allclose(found, expected(values, IDS), rtol=1e-5, atol=1e-5)
    constants = [tensor for tensor in graph.constants() if tensor.is_quantized]
    assert {tensor.dtype for tensor in constants} == {{"8": "int8", "5": "uint8", "4": "uint4"}[type[1]]} and len(constants) == 3
    if type not in MINIMA:
        for tensor in constants:
            name = tensor.name.partition("/")[0]
            assert np.array_equal(tensor.float_values().astype(np.float32), values[name])
    qconvert.save(graph, tmp_path / "again.gguf")
    assert stored_bytes(tmp_path / "again.gguf") == stored_bytes(tmp_path / "w.gguf")


@pytest.mark.parametrize("type", [name for name in WRITTEN if name != "MXFP4"])
def test_onnxruntime_computes_with_the_values_of_the_file(type: str, tmp_path: Path) -> None:
    """Of the file that a conversion writes; its own weights are the integers, and written back they are the file's."""
    import onnxruntime

    weights = random_weights()
    values = quantized(tmp_path / "w.gguf", weights, type)
    source = network(tmp_path, weights)
    qconvert.convert(tmp_path / "w.gguf", tmp_path / "q.onnx", graph=str(source), target="generic")
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # by default it rounds the data to 8 bits
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", settings)
    (found,) = session.run(None, {"ids": IDS})
    np.testing.assert_allclose(found, expected(values, IDS), rtol=1e-5, atol=1e-5)
    qconvert.convert(tmp_path / "q.onnx", tmp_path / "again.gguf")
    again = stored_bytes(tmp_path / "again.gguf")
    assert sorted(again.values()) == sorted(stored_bytes(tmp_path / "w.gguf").values())
    graph = qconvert.load(tmp_path / "again.gguf", graph=str(source))  # in which the turned matrix may have the name of its Transpose
    (found,) = evaluate(graph, {"ids": IDS}).values()
    np.testing.assert_allclose(found, expected(values, IDS), rtol=1e-5, atol=1e-5)


def test_products_of_four_bits_of_onnxruntime(tmp_path: Path) -> None:
    """MatMulNBits, there and back: Q4_0 has its middle, Q4_1 zero points where float16 holds -zero_point * scale."""
    depth, columns = 64, 16
    packed_weights = RNG.integers(0, 256, (columns, 2, 16), np.uint8)
    scales = (RNG.integers(1, 60, (columns, 2)) / 1024).astype(np.float32)
    for points in (None, RNG.integers(0, 256, (columns, 1), np.uint8)):
        constants = [numpy_helper.from_array(packed_weights, "w"), numpy_helper.from_array(scales, "s")]
        constants += [numpy_helper.from_array(points, "z")] if points is not None else []
        node = helper.make_node(
            "MatMulNBits", ["x", *(c.name for c in constants)], ["y"], domain="com.microsoft", K=depth, N=columns, bits=4, block_size=32
        )
        sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, s]) for n, s in (("x", depth), ("y", columns))]
        graph = helper.make_graph([node], "g", sides[:1], sides[1:], constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "n.onnx")
        qconvert.convert(tmp_path / "n.onnx", tmp_path / "n.gguf", force=True)
        (tensor,) = GGUFReader(tmp_path / "n.gguf").tensors
        assert tensor.tensor_type.name == ("Q4_0" if points is None else "Q4_1")
        graph_read = qconvert.load(tmp_path / "n.onnx")
        (stored,) = (item for item in graph_read.constants() if item.is_quantized)
        assert np.array_equal(gguf.dequantize(tensor.data, tensor.tensor_type), stored.float_values().T.astype(np.float32))
        real, _ = qconvert.extract_scales(graph_read)
        qconvert.save(real, tmp_path / "real.onnx", force=True)
        names = tmp_path / "names.json"
        weights = next(item.name for item in qconvert.load(tmp_path / "real.onnx").constants())
        names.write_text(json.dumps({weights: tensor.name}))
        arguments: dict[str, Any] = {"graph": str(tmp_path / "real.onnx"), "names": str(names)}
        report = qconvert.convert(tmp_path / "n.gguf", tmp_path / "again.onnx", form="qoperator", force=True, **arguments)
        assert report is not None
        again = onnx.load(tmp_path / "again.onnx")
        (product,) = (n for n in again.graph.node if n.op_type == "MatMulNBits")
        kept = {item.name: numpy_helper.to_array(item) for item in again.graph.initializer}
        assert np.array_equal(kept[product.input[1]], packed_weights) and np.array_equal(kept[product.input[2]], scales)
        assert points is None or np.array_equal(kept[product.input[3]], points)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TYPES), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_any_blocks_are_those_of_the_gguf_package(type: str, rows: int, count: int, seed: int) -> None:
    """Of any bytes whose scales are finite: values, and the bytes again."""
    kind = KINDS[type]
    data = random_blocks(np.random.default_rng(seed), type, rows, count)
    weight = unpack_weight(data.reshape(-1), type, (rows, count * kind.values))
    assert np.array_equal(weight.values(), gguf.dequantize(data, GGMLQuantizationType[type]))
    assert np.array_equal(weight.integers().values(), weight.values())
    if kind.needs is not None:
        again = fit_weight(weight, kind.needs)
        assert isinstance(again, BlockWeight) and np.array_equal(pack_weight(again, type), data)


@pytest.mark.parametrize("type", TYPES)
def test_every_type_becomes_integers_in_the_network(type: str, tmp_path: Path) -> None:
    """Blocks of 32 or 256: an embedding that has them along its rows, and a product whose weights lie the other way round."""
    rng = np.random.default_rng(5)
    kind, code = KINDS[type], GGMLQuantizationType[type]
    rows = {"table": random_blocks(rng, type, 10, 256 // kind.values), "w": random_blocks(rng, type, 8, 256 // kind.values)}
    values = {name: gguf.dequantize(data, code) for name, data in rows.items()}
    writer = GGUFWriter(tmp_path / "w.gguf", "test")
    for name, data in rows.items():
        writer.add_tensor(name, data, raw_shape=data.shape, raw_dtype=code)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("MatMul", ["rows", "w"], ["y"])]
    sides = [helper.make_tensor_value_info("ids", TensorProto.INT64, [3]), helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 8])]
    constants = [numpy_helper.from_array(np.ascontiguousarray(turned(name, data)), name) for name, data in values.items()]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "float.onnx")
    found = qconvert.load(tmp_path / "w.gguf", graph=str(tmp_path / "float.onnx"))
    stored = [tensor for tensor in found.constants() if tensor.is_quantized]
    assert len(stored) == 2 and {tensor.dtype for tensor in stored} <= {"uint4", "uint8", "int8"}
    (y,) = evaluate(found, {"ids": IDS}).values()
    wanted = values["table"][IDS].astype(np.float64) @ values["w"].T.astype(np.float64)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_negative_scales_and_zeros_are_kept(tmp_path: Path) -> None:
    """Q4_0's own quantizer makes scales negative where the value of largest magnitude is positive, and 0 of zeros."""
    weights = random_weights()
    weights["w"][:32] = 0
    values = quantized(tmp_path / "w.gguf", weights, "Q4_0")
    graph = qconvert.load(tmp_path / "w.gguf", graph=str(network(tmp_path, weights)))
    (stored,) = (tensor for tensor in graph.constants() if tensor.name.startswith("w/"))
    assert stored.quantization is not None and (stored.quantization.scale < 0).any() and (stored.quantization.scale == 0).any()
    assert np.array_equal(stored.float_values().astype(np.float32), values["w"])


def test_names_may_differ(tmp_path: Path) -> None:
    weights = random_weights()
    quantized(tmp_path / "w.gguf", weights, "Q8_0", {"w": "blk.0.ffn_up.weight"})
    source = str(network(tmp_path, weights))
    with pytest.raises(InvalidModelError) as caught:
        qconvert.load(tmp_path / "w.gguf", graph=source)
    assert caught.value.rule == "unknown-tensor" and "blk.0.ffn_up.weight" in str(caught.value)
    ignored = qconvert.load(tmp_path / "w.gguf", graph=source, rest="ignore")
    assert ignored.constant("w") is not None
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"w": "blk.0.ffn_up.weight"}))
    graph = qconvert.load(tmp_path / "w.gguf", graph=source, names=str(names))
    qconvert.save(graph, tmp_path / "again.gguf", names=str(names))
    assert stored_bytes(tmp_path / "again.gguf") == stored_bytes(tmp_path / "w.gguf")
    for text, rule in (
        ("[", "not-json"),
        ('{"w": 3}', "malformed-names"),
        ('{"w": "a", "v": "a"}', "duplicate-name"),
        ('{"ww": "table"}', "unknown-tensor"),
        ('{"w": "none"}', "unknown-tensor"),
        ('{"v": "table"}', "duplicate-name"),
    ):
        names.write_text(text)
        with pytest.raises(QConvertError) as caught:
            qconvert.load(tmp_path / "w.gguf", graph=source, names=str(names), rest="ignore")
        assert caught.value.rule == rule


def test_other_weights_are_no_weights_of_the_network(tmp_path: Path) -> None:
    weights = random_weights()
    source = str(network(tmp_path, weights))
    shuffled = {**weights, "w": weights["w"][:, ::-1]}
    quantized(tmp_path / "w.gguf", shuffled, "Q8_0")
    with pytest.raises(InvalidModelError) as caught:
        qconvert.load(tmp_path / "w.gguf", graph=source)
    assert caught.value.rule == "values-differ"
    assert qconvert.load(tmp_path / "w.gguf", graph=source, resemblance="waive")
    with pytest.raises(OptionError) as caught:
        qconvert.load(tmp_path / "w.gguf")
    assert caught.value.rule == "graph-missing"


@pytest.mark.parametrize("type", [item.name for item in GGMLQuantizationType if item.name not in (*TYPES, "F32", "F16", "BF16")])
def test_other_types_are_refused_by_name(type: str, tmp_path: Path) -> None:
    weights = random_weights()
    kind = GGMLQuantizationType[type]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    writer = GGUFWriter(tmp_path / "w.gguf", "test")
    writer.add_tensor("v", np.zeros((8, size), np.uint8), raw_shape=(8, size), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError) as caught:
        qconvert.load(tmp_path / "w.gguf", graph=str(network(tmp_path, weights)))
    assert (caught.value.rule, caught.value.where) == ("type-not-covered", "'v'") and f"{type} (1)" in caught.value.reason


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_plain_numbers(kind: Any, tmp_path: Path) -> None:
    weights = {name: data.astype(np.float16).astype(np.float32) for name, data in random_weights().items()}
    writer = GGUFWriter(tmp_path / "w.gguf", "test")
    for name, data in weights.items():
        writer.add_tensor(name, np.ascontiguousarray(turned(name, data)).astype(kind))
    writer.add_tensor("brain", np.zeros((2, 4), np.uint8), raw_shape=(2, 4), raw_dtype=GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    graph = qconvert.load(tmp_path / "w.gguf", graph=str(network(tmp_path, weights)), rest="ignore")
    assert all(np.array_equal(graph.constant(name), data) for name, data in weights.items())  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError) as caught:
        qconvert.save(graph, tmp_path / "again.gguf")
    assert caught.value.rule == "no-blocks"


def in_blocks(size: int, axis: int, dtype: str = "int8", *, scale: float = 0.5, points: int = 0, depth: int = 64) -> qconvert.Graph:
    from qconvert.plugin import Op, Quantization, Tensor, numpy_dtype

    shape = (depth, 32)
    counts = tuple(-(-s // size) if i == axis else s for i, s in enumerate(shape))
    data = RNG.integers(0, 7, shape).astype(numpy_dtype(dtype))
    quantization = Quantization(np.full(counts, scale, np.float32), np.full(counts, points, np.int64), axis, size)
    tensors = [Tensor("x", "float32", (1, depth)), Tensor("q", dtype, shape, data, quantization), Tensor("w", "float32", shape)]
    tensors.append(Tensor("y", "float32", (1, 32)))
    ops = (Op("Dequantize", ("q",), ("w",)), Op("MatMul", ("x", "w"), ("y",)))
    return qconvert.Graph("g", {t.name: t for t in tensors}, ops, ("x",), ("y",))


@pytest.mark.parametrize(
    ("graph", "broken"),
    [
        (in_blocks(32, 1), ("not-storable", 1, 0)),
        (in_blocks(16, 0), ("not-storable", 16, 64)),
        (in_blocks(32, 0, depth=48), ("not-storable", 32, 48)),
        (in_blocks(32, 0, scale=0.1), ("not-storable", "0.1")),
        (in_blocks(32, 0, scale=1e6), ("not-storable", "1e+06")),
        (in_blocks(32, 0, points=3), ("not-storable", "zero points")),
        (in_blocks(32, 0, "int16"), ("not-storable", "int16")),
        (in_blocks(32, 0, "uint4", points=3, scale=float(np.float16(1025 / 1024))), ("not-storable", "minima")),
    ],
)
def test_what_has_no_place_is_named(graph: qconvert.Graph, broken: tuple[Any, ...], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        qconvert.save(graph, tmp_path / "w.gguf")
    assert caught.value.rule == broken[0] and all(str(part) in str(caught.value) for part in broken[1:])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "dtype", "points", "type"),
    [(64, "int4", 0, "Q4_0"), (32, "uint8", 128, "Q8_0"), (32, "int4", 2, "Q4_1"), (64, "uint4", 0, "Q4_1")],
)
def test_other_stored_forms_of_the_same_values(size: int, dtype: str, points: int, type: str, tmp_path: Path) -> None:
    graph = in_blocks(size, 0, dtype, points=points)
    qconvert.save(graph, tmp_path / "w.gguf")
    (tensor,) = GGUFReader(tmp_path / "w.gguf").tensors
    assert tensor.tensor_type.name == type and tensor.name == "w"
    assert np.array_equal(gguf.dequantize(tensor.data, tensor.tensor_type), graph["q"].float_values().T.astype(np.float32))


def test_rounding_is_said(tmp_path: Path) -> None:
    notes = qconvert.save(in_blocks(32, 0, scale=0.1), tmp_path / "w.gguf", rounding="round")
    text = " ".join(map(str, notes))
    assert "64 of 64 scales of 'w' are rounded to float16, by up to 0.00024" in text


def test_scales_are_not_rounded_to_zero(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        qconvert.save(in_blocks(32, 0, scale=1e-9), tmp_path / "w.gguf", rounding="round")
    assert caught.value.rule == "not-storable" and "1e-09" in str(caught.value)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    folder = tmp_path_factory.mktemp("sound")
    weights = random_weights()
    quantized(folder / "w.gguf", weights, "Q4_0")
    return (folder / "w.gguf").read_bytes(), str(network(folder, weights))


def test_every_truncation_is_an_error(sound: tuple[bytes, str], tmp_path: Path) -> None:
    data, source = sound
    path = tmp_path / "w.gguf"
    for size in [*range(0, 420, 7), len(data) // 2, len(data) - 64]:
        path.write_bytes(data[:size])
        with pytest.raises(QConvertError):
            qconvert.load(path, graph=source)


def test_damaged_files_are_errors_and_end_soon(sound: tuple[bytes, str], tmp_path: Path) -> None:
    data, source = sound
    path, rng = tmp_path / "w.gguf", np.random.default_rng(5)
    for number in range(600):
        broken = bytearray(data)
        for place in rng.integers(0, 420, rng.integers(1, 5)):
            broken[place] = rng.integers(0, 256)
        if number % 3 == 0:
            at = int(rng.integers(4, 400))
            broken[at : at + 8] = struct.pack("<Q", (2**64 - 1, 2**63, 2**60, 2**32, 2**31)[int(rng.integers(5))])
        path.write_bytes(bytes(broken))
        try:
            qconvert.load(path, graph=source, rest="ignore")
        except QConvertError as error:
            assert error.exit_code == 2


def header(tensors: int, fields: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields)


def entry(name: str, shape: tuple[int, ...], kind: int, start: int) -> bytes:
    text = name.encode()
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, start)


@pytest.mark.parametrize(
    ("data", "broken"),
    [
        (header(2**60), ("file-too-short", 1152921504606846976)),
        (header(0, 2**63), ("file-too-short",)),
        (header(0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**40) + bytes(64), ("file-too-short", 1099511627776)),
        (header(0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 0, 2**62) + bytes(64), ("file-too-short", "k")),
        (header(0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 2) + bytes(64), ("form-not-covered", 9)),
        (header(0, 1) + struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 3) + bytes(64), ("malformed-alignment", 3)),
        (header(1) + entry("v", (32, 2**59), 2, 0) + bytes(640), ("malformed-offset",)),
        (header(1) + entry("v", (32, 8), 2, 2**62) + bytes(640), ("malformed-offset",)),
        (header(1) + entry("v", (32, 8), 2, 7) + bytes(640), ("malformed-offset",)),
        (header(1) + entry("v", (33, 8), 2, 0) + bytes(640), ("blocks-do-not-fit", 32)),
        (header(1) + entry("v", (0, 8), 2, 0) + bytes(640), ("blocks-do-not-fit",)),
        (header(1) + entry("v", (1,) * 5, 0, 0) + bytes(640), ("wrong-rank", 5)),
        (header(1) + entry("v", (32, 8), 200, 0) + bytes(640), ("unknown-type", 200)),
        (header(2) + entry("v", (32, 8), 2, 0) + entry("v", (32, 8), 2, 160) + bytes(640), ("duplicate-name",)),
        (header(2) + entry("v", (32, 8), 2, 0) + entry("w", (32, 8), 2, 128) + bytes(640), ("malformed-offset",)),
        (header(1) + struct.pack("<Q", 2) + b"\xff\xfe" + bytes(640), ("not-utf8",)),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), ("version-not-covered",)),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + bytes(64), ("version-not-covered", 1)),
        (header(1) + entry("v", (32, 8), 2, 0) + bytes(31) + b"\x00\x7c" * 200, ("scale-not-finite",)),
    ],
)
def test_hostile_files(data: bytes, broken: tuple[Any, ...], sound: tuple[bytes, str], tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    path.write_bytes(data)
    with pytest.raises(QConvertError) as caught:
        qconvert.load(path, graph=sound[1])
    assert caught.value.rule == broken[0] and all(str(part) in str(caught.value) for part in broken[1:])
    assert caught.value.file


def test_no_file(sound: tuple[bytes, str], tmp_path: Path) -> None:
    with pytest.raises(FileAccessError):
        qconvert.load(tmp_path / "none.gguf", graph=sound[1])
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(InvalidModelError) as caught:
        qconvert.load(tmp_path / "empty.gguf", graph=sound[1])
    assert caught.value.rule == "empty-file"


def test_the_list_of_tensors_is_that_of_the_gguf_package(sound: tuple[bytes, str], tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    path.write_bytes(sound[0])
    data = map_file(path)
    metadata, found = read_header(data)
    reader = GGUFReader(path)
    assert [(item.name, item.type, item.start, item.size) for item in found] == [
        (item.name, item.tensor_type.name, int(item.data_offset), int(item.n_bytes)) for item in reader.tensors
    ]
    assert all(
        np.array_equal(tensor_bytes(data, item), other.data.reshape(-1).view(np.uint8))
        for item, other in zip(found, reader.tensors, strict=True)
    )
    assert metadata["test.count"] == 7 and metadata["general.architecture"] == "test"


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "fixtures" / "onnx" / "torch_mobilenet_v2_qdq.onnx"
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(64))
    monkeypatch.setattr("qconvert.runtimes.packages.find_spec", lambda name: None)
    for first, second, options in ((source, "new.gguf", {}), (tmp_path / "m.gguf", "new.onnx", {"graph": source})):
        with pytest.raises(QConvertError, match="the package gguf, which knows the types of"):
            qconvert.convert(first, tmp_path / second, **options)
