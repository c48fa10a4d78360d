"""Constants in a file compared with the model: their bytes, their places and their names."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of

from qconvert import Graph, Op, Tensor, load, save
from qconvert.files import copy_mapped, map_file, release_pages
from qconvert.formats.onnx import initializers
from qconvert.formats.onnx.container import external_files, open_model
from qconvert.graph import Array, numpy_dtype
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.formats

GENERATOR = np.random.default_rng(0)
WEIGHT = GENERATOR.normal(size=(64, 48)).astype(np.float32)


def graph(weight: np.ndarray[Any, Any] = WEIGHT) -> Graph:
    """y = x @ weight, and a constant too small to leave the model."""
    tensors = {
        "x": Tensor("x", "float32", (1, 64)),
        "weight": Tensor("weight", "float32", (64, 48), weight),
        "bias": Tensor("bias", "float32", (48,), np.ones(48, np.float32)),
        "m": Tensor("m", "float32", (1, 48)),
        "y": Tensor("y", "float32", (1, 48)),
    }
    ops = (Op("MatMul", ("x", "weight"), ("m",)), Op("Add", ("m", "bias"), ("y",)))
    return Graph("g", tensors, ops, ("x",), ("y",))


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("transposed", [False, True])
def test_external_data_give_the_same_model(transposed: bool, tmp_path: Path) -> None:
    weight = np.ascontiguousarray(WEIGHT.T).T if transposed else WEIGHT
    save(graph(weight), tmp_path / "inline.onnx")
    notes = save(graph(weight), tmp_path / "model.onnx", external_data=True)
    data = f"model.onnx.{hashlib.sha256(WEIGHT.tobytes()).hexdigest()[:16]}.data"
    assert [note.text for note in notes] == [f"the constants are in {data}, which belongs to the model"]
    assert names(tmp_path) == ["inline.onnx", "model.onnx", data]
    assert (tmp_path / data).read_bytes() == WEIGHT.tobytes()
    x = {"x": GENERATOR.normal(size=(1, 64)).astype(np.float32)}
    expected = OnnxRuntime(tmp_path / "inline.onnx").run(x)["y"]
    assert np.array_equal(OnnxRuntime(tmp_path / "model.onnx").run(x)["y"], expected)
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    assert external_files(tmp_path / "model.onnx") == (tmp_path / data,)


def test_small_constants_stay_and_large_ones_start_at_pages(tmp_path: Path) -> None:
    constants: dict[str, Array] = {
        "small": np.zeros(256, np.float32),
        "odd": GENERATOR.integers(0, 255, 1025).astype(np.uint8),
        "page": GENERATOR.integers(0, 255, 70_000).astype(np.uint8),
        "next": GENERATOR.integers(0, 255, 2000).astype(np.uint8),
    }
    tensors = {item.name: item for item in initializers.store(constants, tmp_path / "model", {}, external=True)}
    assert tensors["small"].raw_data == bytes(1024)
    entries = {name: {item.key: item.value for item in tensor.external_data} for name, tensor in tensors.items()}
    assert [int(entries[name]["offset"]) for name in ("odd", "page", "next")] == [0, 4096, 4096 + 70_016]
    (location,) = {entries[name]["location"] for name in ("odd", "page", "next")}
    data = (tmp_path / location).read_bytes()
    for name in ("odd", "page", "next"):
        start, length = int(entries[name]["offset"]), int(entries[name]["length"])
        assert data[start : start + length] == constants[name].tobytes()


def test_deferred_constants_are_written_as_inline_ones(tmp_path: Path) -> None:
    wide = GENERATOR.integers(-8, 8, (64, 65)).astype(numpy_dtype("int4"))
    constants: dict[str, Array] = {"small": np.zeros(3, np.float32), "turned": WEIGHT.T, "packed": wide, "last": WEIGHT}
    deferred: dict[str, Array] = {}
    models = []
    for tensors in (initializers.inline(constants), initializers.store(constants, tmp_path / "model", deferred)):
        models.append(helper.make_model(helper.make_graph([], "g", [], [], list(tensors))))
    assert deferred.keys() == {"turned", "packed", "last"}
    initializers.write_model(models[1], deferred, tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx") == models[0]


def test_only_a_gibibyte_leaves_the_model_by_itself(tmp_path: Path) -> None:
    one = np.broadcast_to(np.zeros(1, np.int8), (2**30,))  # no memory after it
    assert initializers.byte_count(one) == initializers.EXTERNAL_ABOVE
    initializers.store({"c": WEIGHT}, tmp_path / "model", {})
    assert names(tmp_path) == []


@pytest.mark.parametrize(("dtype", "per_byte"), [("int4", 2), ("uint4", 2), ("float4e2m1", 2), ("int2", 4), ("uint2", 4)])
@pytest.mark.parametrize("external", [False, True])
def test_packed_constants(dtype: str, per_byte: int, external: bool, tmp_path: Path) -> None:
    codes = GENERATOR.integers(0, 2 ** (8 // per_byte), 8191).astype(np.uint8)
    kind = numpy_dtype(dtype)
    table = np.arange(2 ** (8 // per_byte)) - (2 ** (8 // per_byte - 1) if dtype.startswith("int") else 0)
    values = codes.view(kind) if dtype == "float4e2m1" else table[codes].astype(kind)
    (tensor,) = initializers.store({"c": values}, tmp_path / "model", {}, external=True) if external else initializers.inline({"c": values})
    if external:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(tmp_path))
    assert len(tensor.raw_data) == -(-8191 // per_byte)
    assert np.array_equal(numpy_helper.to_array(tensor).astype(np.float32), values.astype(np.float32))


def test_strings_and_empty_constants_stay_inline(tmp_path: Path) -> None:
    constants = {"s": np.array(["a", "β"] * 1000, object), "e": np.zeros((0, 4), np.float32)}
    strings, empty = initializers.store(constants, tmp_path / "model", {}, external=True)
    assert strings.string_data[:2] == [b"a", "β".encode()]
    assert numpy_helper.to_array(empty).shape == (0, 4)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="resident pages are read from /proc, which only Linux has")
def test_a_mapped_constant_passes_without_staying_in_memory(tmp_path: Path) -> None:
    size = 96 * 2**20
    (tmp_path / "source").write_bytes(GENERATOR.bytes(size))
    data = np.frombuffer(map_file(tmp_path / "source"), np.uint8, size - 8192, 4096).reshape(-1, 1024)
    data.max()
    before = resident(tmp_path / "source")
    assert before > size * 0.9
    initializers.store({"c": data}, tmp_path / "model", {}, external=True)
    assert resident(tmp_path / "source") < size * 0.01
    (written,) = tmp_path.glob("model.*.data")
    assert written.read_bytes() == data.tobytes()
    with (tmp_path / "more").open("wb") as stream:
        stream.write(b"before")
        assert copy_mapped(data[5:7], stream)
        assert not copy_mapped(data[5:7].T, stream)
        assert not copy_mapped(np.zeros(4), stream)
        stream.write(b"after")
    assert (tmp_path / "more").read_bytes() == b"before" + data[5:7].tobytes() + b"after"
    release_pages(data[3:9, ::2].T)
    assert data[5, 7] == (tmp_path / "source").read_bytes()[4096 + 5 * 1024 + 7]
    release_pages(np.zeros(4))


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith(str(path)))
    return next(int(line.split()[1]) * 1024 for line in lines[at:] if line.startswith("Rss:"))


def quantized(folder: Path, data_name: str) -> Path:
    """A small QDQ model whose weights lie in the file `data_name`."""
    weight = numpy_helper.from_array(GENERATOR.integers(-127, 128, (64, 48)).astype(np.int8), "w")
    scales = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in (("s", 0.05), ("t", 0.01), ("u", 0.5))]
    zero = numpy_helper.from_array(np.array(3, np.int8), "z")
    none = numpy_helper.from_array(np.array(0, np.int8), "n")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "t", "n"], ["wr"]),
        helper.make_node("MatMul", ["xr", "wr"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "u", "z"], ["mq"]),
        helper.make_node("DequantizeLinear", ["mq", "u", "z"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 64), ("y", 48))]
    proto = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight, *scales, zero, none])
    model = model_of(proto)
    path = folder / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location=data_name, size_threshold=1024)
    return path


@pytest.mark.onnxruntime
@pytest.mark.end_to_end
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_command_line(form: str, tmp_path: Path) -> None:
    source, result = quantized(tmp_path, "weights.bin"), tmp_path / "result.onnx"
    command = [sys.executable, "-m", "qconvert", "onnx2onnx", str(source), str(result), "--form", form, "--target", "generic"]
    done = subprocess.run([*command, "--external-data"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    (data,) = external_files(result)
    assert names(tmp_path) == ["model.onnx", "result.onnx", data.name, "weights.bin"]
    assert data.read_bytes() == (tmp_path / "weights.bin").read_bytes()
    written = open_model(result)
    stated = {entry.key: entry.value for entry in written.proto.metadata_props}
    assert stated["qconvert.source_data"] == '{"weights.bin": 3072}'
    assert ("QLinearMatMul" in {node.op_type for node in written.proto.graph.node}) == (form == "qoperator")
    x = {"x": GENERATOR.normal(size=(1, 64)).astype(np.float32)}
    runs = [next(iter(OnnxRuntime(path, optimize=False).run(x).values())) for path in (source, result)]
    assert np.array_equal(runs[0], runs[1])
    assert load(result)["w"].data is not None
