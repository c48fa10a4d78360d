"""Each rule of the TFLite targets is broken once, in a graph made by hand, and is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recurrent_graphs import svdf_graph
from refusals import refused
from tflite_models import TensorSpec, run_litert, single_op

from qconvert import Graph, Op, Quantization, Tensor, convert, load, save
from qconvert.conversion import normalize
from qconvert.errors import RuntimeRefusedError, UnsupportedError
from qconvert.plugins import Violation, target_named
from qconvert.plugins.rules import demands
from qconvert.targets.audit import violations
from qconvert.targets.rules_tflite import FILE_RULES, MICRO_FILE_RULES, MICRO_RULES, RULES, rule_of_demand

FIXTURES = Path(__file__).parents[2] / "fixtures"
WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "data_format": "channels_last"}

DATA_RULES = tuple(rule_of_demand(demand, target_named("tflite")) for demand in demands(target_named("tflite")))


def check(graph: Graph) -> tuple[Violation, ...]:
    return violations(graph, target_named("tflite"))


def check_micro(graph: Graph) -> tuple[Violation, ...]:
    return violations(graph, target_named("tflite-micro"))


def q(scale: float = 0.05, point: int = 0) -> Quantization:
    return Quantization.per_tensor(scale, point)


def act(name: str, shape: tuple[int | str, ...], dtype: str = "int8", quantization: Quantization | None = None) -> Tensor:
    return Tensor(name, dtype, shape, None, quantization if quantization is not None or "float" in dtype or dtype == "bool" else q())


def const(name: str, values: object, dtype: str, quantization: Quantization | None = None) -> Tensor:
    data = np.asarray(values).astype(dtype)
    return Tensor(name, dtype, data.shape, data, quantization)


def graph(op: Op, *tensors: Tensor) -> Graph:
    """One operator; what is no constant is the graph's input or output."""
    free = [tensor.name for tensor in tensors if tensor.data is None and tensor.name in op.inputs]
    return Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), tuple(free), op.outputs)


def conv(dtype: str = "int8", **changes: Tensor) -> Graph:
    """A sound integer convolution with some tensors replaced."""
    point = 128 if dtype == "uint8" else 0
    tensors = {
        "x": act("x", (1, 4, 4, 2), dtype, q(0.05, point)),
        "w": const("w", np.ones((3, 2, 1, 1)) + point, "uint8" if dtype == "uint8" else "int8", q(0.01, point)),
        "b": const("b", np.arange(3), "int32", q(float(np.float32(0.05) * np.float32(0.01)))),
        "y": act("y", (1, 4, 4, 3), dtype, q(0.1, point)),
        **changes,
    }
    op = Op("Conv", ("x", "w", "b"), ("y",), {**WINDOW, "dilations": (1, 1)})
    return graph(op, *tensors.values())


def unary(kind: str, x: Tensor, y: Tensor, **attributes: int | str) -> Graph:
    return graph(Op(kind, (x.name,), (y.name,), attributes), x, y)


def pair(kind: str, a: Tensor, b: Tensor, y: Tensor, **attributes: int | str) -> Graph:
    return graph(Op(kind, ("a", "b"), ("y",), attributes), a, b, y)


def channels_first() -> Graph:
    """A convolution that the layout pass has not seen."""
    made = conv(x=act("x", (1, 2, 4, 4)), y=act("y", (1, 3, 4, 4)))
    return made.evolve(ops=[made.ops[0].with_attributes(data_format="channels_first")])


def hybrid() -> Graph:
    """A product of real data, whose integer weights LiteRT takes as they are."""
    tensors = [act("x", (1, 2), "float32"), const("w", np.ones((3, 2)), "int8", q(0.01))]
    return graph(Op("Gemm", ("x", "w"), ("y",), source="FC #0"), *tensors, act("y", (1, 3), "float32"))


PER_AXIS = Quantization.per_axis([0.1, 0.2, 0.3], 1)
SHAPE = (2, 3)

#: What breaks each rule: the first words of the rule, the tensor that the violation names, the graph.
BROKEN: list[tuple[str, str, Callable[[], Graph]]] = [
    ("the memory of an SVDF", "'memory'", lambda: svdf_graph(state="int8")),
    ("activations are int8", "'x'", lambda: unary("Abs", act("x", SHAPE, "uint16"), act("y", SHAPE))),
    ("activations have one scale", "'x'", lambda: unary("Abs", act("x", SHAPE, "int8", PER_AXIS), act("y", SHAPE))),
    ("int16 activations", "'x'", lambda: unary("Abs", act("x", SHAPE, "int16", q(0.1, 5)), act("y", SHAPE, "int16"))),
    ("the quantized data of an operator", "'b'", lambda: pair("Add", act("a", SHAPE), act("b", SHAPE, "uint8"), act("y", SHAPE))),
    ("only Quantize and Dequantize", "'b'", lambda: pair("Add", act("a", SHAPE), act("b", SHAPE, "float32"), act("y", SHAPE))),
    ("weights are int8", "'w'", lambda: conv(w=const("w", np.ones((3, 2, 1, 1)) + 128, "uint8", q(0.01, 128)))),
    ("signed weights", "'w'", lambda: conv(w=const("w", np.ones((3, 2, 1, 1)), "int8", q(0.01, 5)))),
    (
        "weights have one scale",
        "'w'",
        lambda: conv("uint8", w=const("w", np.ones((3, 2, 1, 1)), "uint8", Quantization.per_axis([0.01] * 3, 0, 128))),
    ),
    ("a bias is int32", "'b'", lambda: conv(b=const("b", np.ones(3), "float32"))),
    ("a bias is int32", "'b'", lambda: conv(b=const("b", np.ones(3), "int32", q(0.1)))),
    ("the results of L2 norm", "'y'", lambda: unary("Sigmoid", act("x", SHAPE), act("y", SHAPE, "int8", q(1 / 200, -128)))),
    ("AveragePool, Concat", "'b'", lambda: pair("Max", act("a", SHAPE), act("b", SHAPE, "int8", q(0.07)), act("y", SHAPE))),
    (
        "Concat fuses no activation",
        "'y'",
        lambda: pair("Concat", act("a", SHAPE), act("b", SHAPE), act("y", (4, 3)), axis=0, activation="relu"),
    ),
    ("LiteRT has a kernel", "'a'", lambda: pair("Div", act("a", SHAPE), act("b", SHAPE), act("y", SHAPE))),
    ("LiteRT has a kernel", "'x'", lambda: unary("Dequantize", const("x", np.ones(3), "int32", q()), act("y", (3,), "float32"))),
    ("the factors", "'y'", lambda: conv(y=act("y", (1, 4, 4, 3), "int8", q(1e-6)))),
    ("the factors", "'y'", lambda: pair("Add", act("a", SHAPE), act("b", SHAPE), act("y", SHAPE, "int8", q(1e-8)))),
    ("the factors", "'y'", lambda: pair("Add", act("a", SHAPE), act("b", SHAPE, "int8", q(1e36)), act("y", SHAPE, "int8", q(1e36)))),
    ("the factors", "'y'", lambda: pair("Less", act("a", SHAPE, "int8", q(3)), act("b", SHAPE, "int8", q(3)), act("y", SHAPE, "bool"))),
    ("TFLite can state the operator", "Conv", channels_first),
]


@pytest.mark.litert
@pytest.mark.cross_section
@pytest.mark.parametrize(("rule", "named", "make"), BROKEN, ids=[f"{rule[:24]}-{number}" for number, (rule, _, _) in enumerate(BROKEN)])
def test_a_broken_rule_is_named(rule: str, named: str, make: Callable[[], Graph]) -> None:
    found = [violation for violation in check(make()) if violation.rule.startswith(rule)]
    assert len(found) >= 1
    assert named in found[0].where
    assert make().ops[0].outputs[0] in found[0].where


def test_every_rule_is_broken_once() -> None:
    texts = {rule.text for rule in (*DATA_RULES, *RULES, *FILE_RULES)}
    assert {text for text in texts if not any(text.startswith(case[0]) for case in BROKEN)} == set()


def test_a_sound_convolution_has_no_violation() -> None:
    assert [*check(conv()), *check_micro(conv()), *check(conv("uint8"))] == []


def test_a_kind_without_an_operator_is_named() -> None:
    op = Op("Opaque", ("x",), ("y",), {"format": "onnx", "domain": "com.microsoft", "op_type": "Thing", "version": 1})
    (found,) = check(graph(op, act("x", SHAPE, "float32"), act("y", SHAPE, "float32")))
    assert "com.microsoft.Thing" in found.where and found.rule.startswith("TFLite has an operator")


MICRO_BROKEN: list[tuple[str, str, Callable[[], Graph]]] = [
    ("tflite-micro has a kernel", "CONV_2D of uint8", lambda: conv("uint8")),
    ("tflite-micro has a kernel", "there is no GELU", lambda: unary("Gelu", act("x", SHAPE), act("y", SHAPE))),
    (
        "tflite-micro has a kernel",
        "TRANSPOSE of int8 with 6 dimensions, at most 5",
        lambda: graph(
            Op("Transpose", ("x",), ("y",), {"perm": (5, 4, 3, 2, 1, 0)}), act("x", (1, 2, 1, 2, 1, 3)), act("y", (3, 1, 2, 1, 2, 1))
        ),
    ),
    ("tflite-micro has a kernel", "FULLY_CONNECTED of float data with weights of int8", hybrid),
    ("only the first dimension", "'width'", lambda: unary("Abs", act("x", (1, "width")), act("y", (1, "width")))),
]


@pytest.mark.parametrize(("rule", "named", "make"), MICRO_BROKEN, ids=[case[1] for case in MICRO_BROKEN])
def test_a_broken_rule_of_tflite_micro_is_named(rule: str, named: str, make: Callable[[], Graph]) -> None:
    found, *others = check_micro(make())
    assert {other.rule for other in others} <= {found.rule}
    assert found.rule.startswith(rule) and named in found.where
    assert list(check(make())) == []
    assert any(found.rule == item.text for item in (*MICRO_RULES, *MICRO_FILE_RULES))


COVERED = sorted(FIXTURES.glob("*.tflite"))
NOT_READ = ("coral_lstm_mnist_int8", "tflm_keyword_svdf_int8")


@pytest.mark.formats
@pytest.mark.parametrize("path", [path for path in COVERED if path.stem not in NOT_READ], ids=lambda path: path.stem)
def test_real_models_break_no_rule(path: Path) -> None:
    source = load(path)
    assert list(check(source)) == []
    graph, _ = normalize(source, target_named("tflite-micro"))
    assert list(check_micro(graph)) == []


@pytest.mark.formats
def test_convert_lists_all_violations_and_writes_nothing(tmp_path: Path) -> None:
    made = conv()
    extra = [replace(made.ops[0], inputs=("x", "w", "b"), outputs=(f"y{i}",)) for i in range(4)]
    wild = [act(f"y{i}", (1, 4, 4, 3), "int8", q(1e-6)) for i in range(4)]
    broken = made.evolve(ops=[*made.ops, *extra], tensors=wild, outputs=("y", *(t.name for t in wild)))
    source, result = tmp_path / "a.qgraph", tmp_path / "a.tflite"
    save(broken, source)
    with refused(UnsupportedError, "target-rules", holds=("Broken by 4", "'y2'", "and 1 more", 256, "calibration")) as caught:
        convert(source, result, target="tflite")
    assert "'y3'" not in str(caught.value)
    assert not result.exists()


def _refused(data: bytes, *feeds: np.ndarray) -> bool:
    try:
        run_litert(data, feeds)
    except RuntimeRefusedError:
        return True
    return False


def _image(dtype: str, scale: float = 0.05, point: int = 0) -> TensorSpec:
    return TensorSpec("x", (1, 2, 2, 1), dtype, scale, point)


def _conv(x: TensorSpec, w: TensorSpec, y: TensorSpec) -> bytes:
    bias = TensorSpec("b", (1,), "int32", np.float32(x.scale) * np.float32(w.scale), 0, data=np.array([0], np.int32))
    return single_op("CONV_2D", {"padding": 0, "strideH": 1, "strideW": 1}, [x, w, bias], [y])


@pytest.mark.litert
def test_litert_refuses_what_the_rules_forbid() -> None:
    """Files that break a rule, as the rule's source says; the same files without the fault run."""
    feed = np.full((1, 2, 2, 1), 10, np.int8)
    kernel = TensorSpec("w", (1, 1, 1, 1), "int8", 0.01, 0, data=np.full((1, 1, 1, 1), 100, np.int8))
    y = TensorSpec("y", (1, 2, 2, 1), "int8", 0.1, 0)
    assert not _refused(_conv(_image("int8"), kernel, y), feed)
    assert _refused(_conv(_image("int8"), replace(kernel, zero_point=5), y), feed)
    assert _refused(_conv(_image("int8"), kernel, replace(y, scale=1e-6)), feed)
    sums = [TensorSpec(name, (4,), "int16", 0.01, 0) for name in "aby"]
    pairs = [np.arange(4, dtype=np.int16)] * 2
    assert not _refused(single_op("ADD", {}, sums[:2], sums[2:]), *pairs)
    assert _refused(single_op("ADD", {}, [replace(tensor, zero_point=7) for tensor in sums[:2]], sums[2:]), *pairs)
    row, sigmoid = TensorSpec("x", (1, 4), "int8", 0.1, 0), TensorSpec("y", (1, 4), "int8", 1 / 256, -128)
    assert not _refused(single_op("SOFTMAX", {"beta": 1.0}, [row], [sigmoid]), np.zeros((1, 4), np.int8))
    assert _refused(single_op("SOFTMAX", {"beta": 1.0}, [row], [replace(sigmoid, scale=1 / 128)]), np.zeros((1, 4), np.int8))


@pytest.mark.litert
def test_litert_misreads_what_the_rules_forbid() -> None:
    """uint8 data with int8 weights run, and the weights are read as uint8; MAXIMUM takes integers of two scales for equal."""
    x, y = _image("uint8", 0.05, 128), TensorSpec("y", (1, 2, 2, 1), "uint8", 0.1, 128)
    kernel = TensorSpec("w", (1, 1, 1, 1), "int8", 0.01, 0, data=np.full((1, 1, 1, 1), -100, np.int8))
    (found,) = run_litert(_conv(x, kernel, y), [np.full((1, 2, 2, 1), 138, np.uint8)])
    assert found.ravel()[0] == 128 + round(10 * 156 * 0.05 * 0.01 / 0.1)  # -100 taken for 156; right were 123
    a, b, largest = (TensorSpec(name, (1,), "int8", scale, 0) for name, scale in (("a", 0.1), ("b", 0.2), ("y", 0.1)))
    (found,) = run_litert(single_op("MAXIMUM", None, [a, b], [largest]), [np.array([10], np.int8), np.array([8], np.int8)])
    assert found[0] == 10  # 1.0 and 1.6: right were 16


def test_the_documentation_lists_every_rule() -> None:
    text = (FIXTURES.parent / "docs" / "formats.md").read_text()
    missing = [
        r.text
        for r in (*DATA_RULES, *RULES, *FILE_RULES, *MICRO_RULES, *MICRO_FILE_RULES)
        if f"| {r.text} | {r.source} | {r.remedy or 'none'} |" not in text
    ]
    assert missing == []
