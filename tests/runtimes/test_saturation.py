"""CPUs without VNNI: which they are, and that models run exactly on them. What is changed is tried on every CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper

from qconvert import convert
from qconvert.runtimes.onnx_rewrites import NOTE, cpu_saturates, has_vnni, with_unsigned_weights
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("flags", "machine", "expected"),
    [
        ("fpu avx2 avx512_vnni", "x86_64", False),
        ("fpu avx2 avx_vnni", "AMD64", False),
        ("fpu avx2 avx512f", "x86_64", True),
        ("", "x86_64", True),
        ("fpu avx2", "aarch64", False),
    ],
)
def test_cpus(flags: str, machine: str, expected: bool, tmp_path: Path) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: avx512_vnni\n")
    assert cpu_saturates(listed, machine) is expected
    assert has_vnni(listed, machine) is ("vnni" in flags)


def test_a_cpu_that_does_not_tell_is_taken_for_one_that_saturates(tmp_path: Path) -> None:
    assert cpu_saturates(tmp_path / "none", "x86_64")
    assert not has_vnni(tmp_path / "none", "x86_64")


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_onnxruntimes_own_setting_is_exact_on_signed_weights(form: str, tmp_path: Path) -> None:
    """docs/rounding.md says so of files for ort-x86-vnni on CPUs without VNNI."""
    path = tmp_path / "model.onnx"
    convert(FIXTURES / "aww_int8.tflite", path, target="ort-x86-vnni", form=form)
    exact = OnnxRuntime(path)
    own = OnnxRuntime(path, exact=False, settings={"session.x64quantprecision": "1"})
    plain = OnnxRuntime(path, exact=False)
    ((name, (dtype, shape)),) = exact.inputs.items()
    sizes = [size if isinstance(size, int) else 1 for size in shape]
    rng, differ = np.random.default_rng(0), False
    for _ in range(4):
        feed = {name: rng.integers(-128, 128, sizes).astype(dtype)}
        expected = exact.run(feed)
        for output, values in own.run(feed).items():
            assert np.array_equal(values, expected[output])
            differ |= not np.array_equal(plain.run(feed)[output], values)
    assert differ == cpu_saturates()


@pytest.fixture
def no_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qconvert.runtimes.onnxruntime.cpu_saturates", lambda: True)


def one_node(op_type: str, constants: dict[str, Any], inputs: list[str], domain: str = "") -> bytes:
    """Data x (8, 64) of uint8."""
    values = [helper.make_tensor_value_info("x", TensorProto.UINT8, [8, 64])]
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    node = helper.make_node(op_type, inputs, ["y"], domain=domain)
    graph = helper.make_graph([node], "made", values, [onnx.ValueInfoProto(name="y")], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


@pytest.mark.cross_section
@pytest.mark.usefixtures("no_vnni")
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("zero_point", [None, 0, -3])
def test_products_of_large_numbers_are_exact(zero_point: int | None, optimize: bool) -> None:
    """Each pair of products is above 2^15."""
    rng = np.random.default_rng(0)
    w = rng.integers(100, 128, (64, 16)).astype(np.int8)
    x = rng.integers(200, 256, (8, 64)).astype(np.uint8)
    constants = {"w": w} if zero_point is None else {"w": w, "z": np.int8(zero_point)}
    data = one_node("MatMulInteger", constants, ["x", "w"] if zero_point is None else ["x", "w", "", "z"])
    runtime = OnnxRuntime(data, optimize=optimize)
    assert np.array_equal(runtime.run({"x": x})["y"], x.astype(int) @ (w.astype(int) - (zero_point or 0)))
    assert runtime.note == NOTE


@pytest.mark.usefixtures("no_vnni")
@pytest.mark.parametrize("directions", [1, 2])
def test_both_weights_of_a_quantized_lstm_are_exact(directions: int) -> None:
    """Next to the LSTM of the same real weights; where pairs of products saturate, values are 0.1 and more away."""
    rng = np.random.default_rng(0)
    cells, size = 16, 32
    stored = [rng.integers(-127, 128, (directions, rows, 4 * cells)).astype(np.int8) for rows in (size, cells)]
    scale, zero = np.full(directions, 0.004, np.float32), np.zeros(directions, np.int8)
    constants = {"w": stored[0], "r": stored[1], "s": scale, "z": zero}
    constants |= {f"{name}_real": (data * np.float32(0.004)).transpose(0, 2, 1) for name, data in zip("wr", stored, strict=True)}
    attributes = {"hidden_size": cells, "direction": ["forward", "bidirectional"][directions - 1]}
    inputs = ["x", "w", "r", *[""] * 5, "s", "z", "s", "z"]
    nodes = [
        helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", **attributes),
        helper.make_node("LSTM", ["x", "w_real", "r_real"], ["wanted"], **attributes),
    ]
    borders = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y", "wanted")]
    graph = helper.make_graph(nodes, "g", borders[:1], borders[1:], [numpy_helper.from_array(v, k) for k, v in constants.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    runtime = OnnxRuntime(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())
    found = runtime.run({"x": rng.normal(0, 1, (5, 2, size)).astype(np.float32)})
    assert np.abs(found["y"] - found["wanted"]).max() < 0.02
    assert runtime.note == NOTE


MODELS = (
    "conv-U8S8-pc-qdq", "conv-U8S8-pc-qoperator", "gemm-U8S8-pc-qdq", "gemm-U8S8-qoperator", "matmul-U8S8-qoperator", "encoder-U8S8-pc-qdq",
    "conv-S8S8-pc-qdq", "mobile-S8S8-qdq", "mobile-U8S8-float_weights-qdq", "matmul-dynamic-S8", "brevitas_int8", "torch_pt2e_x86_vision",
    "torch_fx_fbgemm_vision", "tf2onnx_tiny_kws_dscnn_int8",
)  # fmt: skip


def stored_signed(model: onnx.ModelProto) -> set[str]:
    """int8 constants of two and more dimensions that an operator reads."""
    read = {name for node in model.graph.node for name in node.input}
    return read & {item.name for item in model.graph.initializer if item.data_type == TensorProto.INT8 and len(item.dims) > 1}


@pytest.mark.parametrize("name", [name for name in MODELS if name in onnx_models.CASES or (FIXTURES / "onnx" / f"{name}.onnx").exists()])
def test_models_hold_the_same_numbers(name: str, tmp_path: Path) -> None:
    """Run node by node in float, or on integers that are exact, both give the same bits; no signed weights are left."""
    path = onnx_models.path_of(name, tmp_path)
    changed = with_unsigned_weights(path.read_bytes(), optimize=True)
    assert changed is not None
    model = onnx.load_from_string(changed)
    onnx.checker.check_model(model)
    assert not stored_signed(model)
    if "qoperator" not in name and "dynamic" not in name:
        inputs = onnx_models.random_inputs(changed, 1)
        for old, new in zip(onnx_models.run(path.read_bytes(), inputs), onnx_models.run(changed, inputs), strict=True):
            assert np.array_equal(old, new)


@pytest.mark.usefixtures("no_vnni")
@pytest.mark.parametrize("name", ["conv-U8S8-pc-qoperator", "gemm-U8S8-pc-qdq", "encoder-U8S8-qoperator", "brevitas_int8"])
def test_the_optimized_graph_computes_what_the_graph_says(name: str, tmp_path: Path) -> None:
    """onnx's operators in float are the truth; kernels on integers may round the other way, and saturated ones were off by 50 steps."""
    from qconvert import load
    from qconvert.evaluate import evaluate

    path = onnx_models.path_of(name, tmp_path)
    graph, runtime = load(path), OnnxRuntime(path)
    inputs = onnx_models.random_inputs(path.read_bytes(), 3)
    found, wanted = runtime.run(inputs), evaluate(graph, inputs)
    step = max(float(t.quantization.scale.max()) for t in graph.tensors.values() if t.quantization is not None and not t.is_constant)
    for output in graph.outputs:
        assert np.abs(found[output] - wanted[output]).max() <= 2 * step


def test_models_without_such_weights_are_left_alone(tmp_path: Path) -> None:
    """uint8 weights; int8 activations in QLinear operators; QDQ that is run as it stands; float."""
    for name in ("conv-U8U8-qoperator", "conv-U8U8-qdq", "conv-S8S8-pc-qoperator"):
        assert with_unsigned_weights(onnx_models.CASES[name](), optimize=True) is None
    assert with_unsigned_weights(onnx_models.CASES["conv-U8S8-pc-qdq"](), optimize=False) is None
    assert with_unsigned_weights(one_node("Sqrt", {}, ["x"]), optimize=True) is None
    assert with_unsigned_weights(b"no protobuf", optimize=True) is None


@pytest.mark.usefixtures("no_vnni")
def test_a_user_can_have_the_model_as_it_is() -> None:
    data = onnx_models.CASES["conv-U8S8-pc-qoperator"]()
    assert OnnxRuntime(data).note == NOTE
    assert OnnxRuntime(data, exact=False).note == ""


@pytest.mark.usefixtures("no_vnni")
def test_constants_in_other_files_are_found(tmp_path: Path) -> None:
    data = onnx_models.CASES["conv-U8S8-pc-qoperator"]()
    inputs = onnx_models.random_inputs(data, 2)
    onnx.save(onnx.load_from_string(data), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    runtime = OnnxRuntime(tmp_path / "m.onnx")
    assert runtime.note == NOTE
    assert np.array_equal(next(iter(runtime.run(inputs).values())), onnx_models.run(data, inputs)[0])


@pytest.mark.usefixtures("no_vnni")
def test_the_check_says_so(tmp_path: Path) -> None:
    from qconvert import check

    path = onnx_models.path_of("conv-U8S8-pc-qdq", tmp_path)
    assert check(path, path, samples=1).machine == (NOTE,)
    assert check(path, path, samples=1, kernels="onnxruntime:unoptimized").machine == ()


@pytest.mark.usefixtures("no_vnni")
def test_a_round_trip_says_so(tmp_path: Path) -> None:
    from qconvert import roundtrip

    report = roundtrip(onnx_models.path_of("conv-U8S8-pc-qdq", tmp_path), "onnx:qoperator", samples=1)
    assert report.passed
    assert [leg.machine for leg in report.legs] == [(NOTE,), ()]
