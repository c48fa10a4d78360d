"""formats/onnx/proto.py compared with the package onnx: the same classes and messages, and conversions that do not import the package."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qconvert.formats.onnx import proto
from qconvert.formats.onnx.container import unverified_proto
from qconvert.formats.onnx.initializers import BITS, DTYPE_NAMES, Files
from qconvert.formats.onnx.writer import _IR_VERSIONS, LOWEST_OPSET
from qconvert.graph import numpy_dtype

pytestmark = pytest.mark.formats
_FIXTURES = Path(__file__).parents[3] / "fixtures"
_TENSOR = numpy_helper.from_array(np.arange(3.0), "t")
_GRAPH = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "g", [], [])
_TYPE = helper.make_tensor_type_proto(1, [2, "N"])


def test_messages_are_those_of_onnx() -> None:
    for name in ("AttributeProto", "GraphProto", "ModelProto", "NodeProto", "OperatorSetIdProto", "TensorProto", "TypeProto"):
        assert getattr(proto, name) is getattr(onnx, name)
    assert proto.newest_opset() == onnx.defs.onnx_opset_version()
    assert proto.defs.get_schema("Conv", 17, "").since_version == onnx.defs.get_schema("Conv", 17, "").since_version == 11


@pytest.mark.parametrize(
    "value",
    [3, True, np.int64(3), 2.5, 3.0, np.float32(1.5), np.float64(2), "a", "ä", b"\xff", _TENSOR, _GRAPH, _TYPE, [1, 2], (1.0, 2),
     np.array([1, 2]), np.array([1.5]), ["a", b"b"], [_TENSOR, _TENSOR], [_GRAPH], [_TYPE], [np.int64(4), 2.0]],
)  # fmt: skip
def test_attributes_are_those_of_onnx(value: object) -> None:
    assert proto.make_attribute("k", value) == helper.make_attribute("k", value)


def test_empty_lists_get_the_type_that_is_stated() -> None:
    for kind in (proto.AttributeType.FLOATS, proto.AttributeType.INTS, proto.AttributeType.STRINGS):
        assert proto.make_attribute("k", [], kind) == helper.make_attribute("k", [], attr_type=int(kind))


@pytest.mark.parametrize("shape", [None, (), (1, "N", None), (0, 3)])
def test_values_are_those_of_onnx(shape: tuple[int | str | None, ...] | None) -> None:
    assert proto.make_value_info("v", 1, shape) == helper.make_tensor_value_info("v", 1, shape)
    assert proto.make_tensor_type(7, shape) == helper.make_tensor_type_proto(7, shape)


def test_nodes_are_those_of_onnx() -> None:
    for stated in ({}, {"name": "n", "domain": ""}, {"domain": "com.microsoft", "pads": [1, 2], "auto_pad": None, "alpha": 2.0}):
        ours, theirs = (make("Conv", ["a", ""], ["b"], **stated) for make in (proto.make_node, helper.make_node))
        assert ours.SerializeToString() == theirs.SerializeToString()


def test_ir_versions_are_those_of_onnx() -> None:
    for opset in range(LOWEST_OPSET, proto.HIGHEST_OPSET + 1):
        version = next(version for newest, version in _IR_VERSIONS if opset <= newest)
        assert version == helper.find_min_ir_version_for([helper.make_opsetid("", opset)])


@pytest.mark.parametrize("number", sorted(BITS.keys() & DTYPE_NAMES.keys()))
def test_raw_values_are_those_of_onnx(number: int) -> None:
    """Eight elements of each type; truth values are 0 and 1."""
    data = np.random.default_rng(number).integers(0, 2 if number == TensorProto.BOOL else 256, BITS[number], np.uint8)
    tensor = TensorProto(data_type=number, dims=[2, 4], raw_data=data.tobytes())
    ours, theirs = Files(Path(), b"").numpy(tensor), numpy_helper.to_array(tensor)
    assert ours.dtype == theirs.dtype == numpy_dtype(DTYPE_NAMES[number])
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("path", sorted(_FIXTURES.rglob("*.onnx")), ids=lambda path: path.name)
def test_files_hold_what_onnx_finds(path: Path) -> None:
    """All constants of all files, the large ones, which are left in the file, too."""
    theirs = {item.name: item for item in onnx.load(path).graph.initializer}
    model = unverified_proto(path)
    files = Files(path.parent, path.read_bytes())
    assert [item.name for item in model.graph.initializer] == list(theirs)
    for item in model.graph.initializer:
        ours, expected = files.numpy(item), numpy_helper.to_array(theirs[item.name])
        assert ours.dtype == expected.dtype
        assert ours.shape == expected.shape
        assert ours.tobytes() == expected.tobytes()


@pytest.mark.end_to_end
def test_a_conversion_does_not_import_onnx(tmp_path: Path) -> None:
    """And the package works when it is imported after that."""
    code = """
import sys, pathlib, qconvert
folder = pathlib.Path(sys.argv[2])
qconvert.convert(sys.argv[1], folder / "a.onnx")
qconvert.convert(folder / "a.onnx", folder / "b.tflite")
assert "onnx" not in sys.modules and "ml_dtypes" not in sys.modules
import onnx
from qconvert.formats.onnx import proto
assert onnx.ModelProto is proto.ModelProto is onnx.onnx_ml_pb2.ModelProto
onnx.checker.check_model(onnx.load(folder / "a.onnx"), full_check=True)
"""
    source = _FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    found = subprocess.run([sys.executable, "-c", code, source, tmp_path], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.end_to_end
def test_flatbuffers_alone_load_no_protobuf(tmp_path: Path) -> None:
    code = """
import sys, qconvert
qconvert.convert(sys.argv[1], sys.argv[2] + "/a.tflite")
print(sorted(name for name in sys.modules if name.startswith(("qconvert.formats.onnx.", "google"))))
"""
    source = _FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    found = subprocess.run([sys.executable, "-c", code, source, tmp_path], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
