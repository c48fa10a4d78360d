"""unary_to_table: what is computed of one tensor's codes, element by element, as a table: in numbers, in LiteRT, in the check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from passes.graphs import applied, constant, make, outputs, q, said

import qconvert
from qconvert import Graph, Op, Quantization, Tensor
from qconvert.evaluate import evaluate
from qconvert.evaluate.curves import find_lookup
from qconvert.graph import integer_range, numpy_dtype
from qconvert.plugins import pass_named, target_named
from qconvert.rules.validation import validate
from qconvert.runtimes.litert import LiteRT

SCALES = {8: (0.05, 0.04, 0.008, 0.016, 0.05, 0.025), 16: tuple(s / 256 for s in (0.05, 0.04, 0.008, 0.016, 0.05, 0.025))}


def gelu(dtype: str, *read: str) -> Graph:
    """x * (1 + erf(x / sqrt(2))) / 2 with a quantization after every part."""
    low, high = integer_range(dtype)
    bits = 8 if high - low < 256 else 16
    zeros = [0] * 6 if dtype == "int16" else [low + (high - low + 1) // 2 + offset for offset in (7, 0, -3, -100, 2, -96)]
    tensors = [Tensor(name, dtype, (2, 128 * (high - low + 1) // 256), None, q(scale, zero))
               for name, scale, zero in zip("xdegpy", SCALES[bits], zeros, strict=True)]  # fmt: skip
    tensors += [constant(name, np.array(value, np.float32)) for name, value in (("root", 2**0.5), ("half", 0.5))]
    tensors.append(constant("one", np.array(100, numpy_dtype(dtype)), q(0.01)))
    ops = [Op("Div", ("x", "root"), ("d",)), Op("Erf", ("d",), ("e",)), Op("Add", ("e", "one"), ("g",)), Op("Mul", ("x", "g"), ("p",)),
           Op("Mul", ("p", "half"), ("y",))]  # fmt: skip
    return make(ops, tensors, "x", " ".join(("y", *read)))


def tabled(graph: Graph, target: str = "tflite") -> tuple[Graph, tuple[str, ...]]:
    changed, notes = pass_named("unary_to_table").run(graph, target_named(target))
    validate(changed)
    return changed, said(notes)


def assert_same(before: Graph, after: Graph, codes: np.ndarray) -> None:
    """The same stored values; onnxruntime has the table's too. What it makes of the parts may be a step off, where float32 breaks a tie."""
    wanted, found = (evaluate(graph, {"x": codes}) for graph in (before, after))
    for name, values, parts in zip(before.outputs, outputs(after, {"x": codes}), outputs(before, {"x": codes}), strict=True):
        assert np.array_equal(wanted[name], found[name]) and np.array_equal(found[name], values)
        steps = np.abs(values.astype(np.int64) - parts)
        assert steps.max() <= 2 and (steps > 0).mean() < 0.05


@pytest.mark.onnxruntime
@pytest.mark.cross_section
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_a_function_of_one_tensor_is_one_table(dtype: str) -> None:
    graph = gelu(dtype)
    changed, notes = tabled(graph)
    assert [op.kind for op in changed.ops] == ["Cast", "Add", "Gather"] if dtype != "uint8" else ["Cast", "Gather"]
    low, high = integer_range(dtype)
    words = "functions of one tensor with Erf, which the target lacks, are lookup tables"
    assert notes == (f"{words}: 1 of {high - low + 1} values (exact)",)
    codes = np.arange(low, high + 1).astype(numpy_dtype(dtype)).reshape(2, -1)
    assert_same(graph, changed, codes)


@pytest.mark.onnxruntime
def test_what_others_read_on_the_way_has_a_table_of_its_own() -> None:
    graph = gelu("int8", "e", "d")
    changed, _ = tabled(graph)
    assert sorted(op.kind for op in changed.ops) == ["Add", "Add", "Cast", "Cast", "Div", "Gather", "Gather"]
    assert_same(graph, changed, np.arange(-128, 128).astype(np.int8).reshape(2, 128))


@pytest.mark.formats
@pytest.mark.parametrize("wanted", ["float", "constants", "another tensor"])
def test_no_table_for(wanted: str) -> None:
    quantization = q(0.1, 3)
    x, z = Tensor("x", "int8", (2, 4), None, quantization), Tensor("z", "int8", (2, 4), None, quantization)
    y, e = Tensor("y", "int8", (2, 4), None, quantization), Tensor("e", "int8", (2, 4), None, quantization)
    if wanted == "float":
        real = [Tensor(name, "float32", (2, 4)) for name in "xy"]
        graph = make([Op("Erf", ("x",), ("y",))], real, "x", "y")
    elif wanted == "constants":  # one for each column: a table for each would do, a single one does not
        columns = constant("c", np.array([1, 2, 3, 4], np.int8), quantization)
        graph = make([Op("Mul", ("x", "c"), ("z",)), Op("Sinh", ("z",), ("y",))], [x, columns, y, z], "x", "y")
    else:
        graph = make([Op("Erf", ("x",), ("e",)), Op("Mul", ("e", "z"), ("y",))], [x, z, y, e], "x z", "y")
    changed, _ = tabled(graph)
    lookups = [find_lookup(changed, changed.producers(), op) for op in changed.ops]
    roots = [lookup.root for lookup in lookups if lookup is not None]
    assert roots == {"float": [], "constants": ["z"], "another tensor": ["x"]}[wanted]


@pytest.mark.formats
def test_equal_tables_are_one() -> None:
    names = ("x", "z", "y", "v")
    tensors = [Tensor(name, "int8", (2, 4), None, q(0.1, 3)) for name in names]
    changed, _ = tabled(make([Op("Erf", ("x",), ("y",)), Op("Erf", ("z",), ("v",))], tensors, "x z", "y v"))
    tables = {op.inputs[0] for op in changed.ops if op.kind == "Gather"}
    assert len(tables) == 1


# chains

#: Functions of one tensor, with their attributes.
KINDS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in "Abs Neg Exp Sqrt Rsqrt Log Erf Square Relu HardSwish Sigmoid Tanh Softplus".split()),
    ("LeakyRelu", {"alpha": 0.1}), ("Elu", {}), ("HardSigmoid", {"alpha": 0.2, "beta": 0.4}), ("Requantize", {}), ("Requantize", {}),
]  # fmt: skip
BOTH = ["Add", "Mul", "Sub"]


def chain(seed: int, dtype: str = "int8", length: int = 5) -> Graph:
    """A random chain with a quantization after each operator, constants next to some, and one that reads the chain's start again."""
    rng = np.random.default_rng(seed)
    low, high = integer_range(dtype)
    span = high - low + 1

    def quantization() -> Quantization:
        point = 0 if dtype == "int16" else int(rng.integers(low + span // 4, high - span // 4))
        return q(float(rng.uniform(0.5, 2)) * 8 / span, point)

    tensors = [Tensor("t0", dtype, (2, span // 2), None, quantization())]
    ops: list[Op] = []
    for index in range(1, length + 1):
        before, name = f"t{index - 1}", f"t{index}"
        tensors.append(Tensor(name, dtype, (2, span // 2), None, quantization()))
        kind = str(rng.choice(["unary", "both", "again"], p=[0.7, 0.2, 0.1]))
        if kind == "unary":
            found, attributes = KINDS[int(rng.integers(len(KINDS)))]
            ops.append(Op(found, (before,), (name,), attributes))  # type: ignore[arg-type]
            continue
        other = "t0"
        if kind == "both":
            other = f"c{index}"
            tensors.append(constant(other, np.array(int(rng.integers(1, 100)), numpy_dtype(dtype)), quantization()))
        ops.append(Op(str(rng.choice(BOTH)), (before, other), (name,)))
    return make(ops, tensors, "t0", f"t{length}")


@pytest.mark.onnxruntime
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_chain_is_one_table(dtype: str, seed: int) -> None:
    """For all 256 codes, in the evaluator and in onnxruntime."""
    graph = chain(seed, dtype, 2 + seed % 7)
    changed, notes = applied(graph, "unary_to_table", tables="chains")
    assert [op.kind for op in changed.ops] in (["Cast", "Add", "Gather"], ["Cast", "Gather"])
    assert notes == ("chains of operators on one tensor are lookup tables: 1 of 256 values (exact)",)
    low, high = integer_range(dtype)
    codes = {"t0": np.arange(low, high + 1).astype(numpy_dtype(dtype)).reshape(2, 128)}
    wanted = evaluate(graph, codes)[graph.outputs[0]]
    assert np.array_equal(wanted, evaluate(changed, codes)[graph.outputs[0]])
    assert np.array_equal(wanted, outputs(changed, codes)[0])


@pytest.mark.litert
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_a_chain_in_litert(dtype: str, tmp_path: Path) -> None:
    for seed in range(3):
        graph = chain(100 + seed, dtype)
        changed, _ = applied(graph, "unary_to_table", tables="chains16")
        low, high = integer_range(dtype)
        codes = np.arange(low, high + 1).astype(numpy_dtype(dtype)).reshape(2, -1)
        path = tmp_path / f"{seed}.tflite"
        qconvert.save(changed, path)
        found = next(iter(LiteRT(path.read_bytes()).run({"t0": codes}).values()))
        assert np.array_equal(found, evaluate(graph, {"t0": codes})[graph.outputs[0]])


@pytest.mark.formats
def test_chains_of_16_bits_are_asked_for_by_name() -> None:
    graph = chain(1, "int16")
    assert applied(graph, "unary_to_table", tables="chains")[0] is graph
    _, notes = applied(graph, "unary_to_table", tables="chains16")
    assert notes == ("chains of operators on one tensor are lookup tables: 1 of 65536 values (exact)",)


@pytest.mark.formats
@pytest.mark.parametrize("tables", ["missing", "chains"])
def test_one_operator_is_no_chain(tables: str) -> None:
    tensors = [Tensor("x", "int8", (4,), None, q(0.1)), Tensor("y", "int8", None, None, q(1 / 256, -128))]
    graph = make([Op("Sigmoid", ("x",), ("y",))], tensors, "x", "y")
    assert applied(graph, "unary_to_table", tables=tables)[0] is graph


@pytest.mark.formats
def test_a_chain_ends_where_somebody_else_reads() -> None:
    """b is an output, so that x to b and b to y are two tables; c is read by a product of two tensors, which is none."""
    tensors = [Tensor(name, "int8", (2, 128), None, q(0.05, point)) for point, name in enumerate("xabcdyz")]
    ops = [Op("Tanh", ("x",), ("a",)), Op("Elu", ("a",), ("b",)), Op("Abs", ("b",), ("c",)), Op("HardSwish", ("c",), ("d",)),
           Op("Relu", ("d",), ("y",)), Op("Mul", ("c", "v"), ("z",))]  # fmt: skip
    tensors.append(Tensor("v", "int8", (2, 128), None, q(0.05, 4)))
    graph = make(ops, tensors, "x v", "b y z")
    changed, notes = applied(graph, "unary_to_table", tables="chains")
    assert [op.kind for op in changed.ops] == ["Cast", "Add", "Gather", "Abs", "Cast", "Add", "Gather", "Mul"]
    assert "2 of 256 values" in notes[0]
    feed = {"x": np.arange(-128, 128).astype(np.int8).reshape(2, 128), "v": np.full((2, 128), 40, np.int8)}
    before, after = evaluate(graph, feed), evaluate(changed, feed)
    assert all(np.array_equal(before[name], after[name]) for name in graph.outputs)


@pytest.mark.onnxruntime
def test_real_values_between_quantizations_are_part_of_a_chain() -> None:
    """Dequantize, functions of float values, Quantize."""
    x, y = Tensor("x", "uint8", (256,), None, q(0.05, 128)), Tensor("y", "uint8", (256,), None, q(0.02, 30))
    ops = [Op("Dequantize", ("x",), ("r",)), Op("Sigmoid", ("r",), ("s",)), Op("Mul", ("r", "s"), ("t",)), Op("Quantize", ("t",), ("y",))]
    graph = make(ops, [x, y], "x", "y")
    changed, _ = applied(graph, "unary_to_table", tables="chains")
    assert [op.kind for op in changed.ops] == ["Cast", "Gather"]
    codes = {"x": np.arange(256).astype(np.uint8)}
    assert np.array_equal(evaluate(graph, codes)["y"], outputs(changed, codes)[0])


# files


def model(path: Path, activations: str, parts: str = "gelu") -> Path:
    """MatMul, a function decomposed with pairs between its parts, MatMul, as onnxruntime's quantizer writes it."""
    rng = np.random.default_rng(3)
    kind = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int16": TensorProto.INT16, "uint16": TensorProto.UINT16}[activations]
    low, high = integer_range(activations)
    zero = (low + high + 1) // 2
    nodes, constants = [], []

    def const(name: str, value: object, dtype: object = np.float32) -> str:
        constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def pair(name: str, scale: float, offset: int = 0) -> str:
        wide = high - low > 256
        parameters = [const(f"{name}_scale", scale / (256 if wide else 1))]
        place = zero + (0 if activations == "int16" else offset * (256 if wide else 1))
        parameters.append(const(f"{name}_zero", place, numpy_dtype(activations)))
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [f"{name}_dq"]))
        return f"{name}_dq"

    def weights(name: str, rows: int, columns: int) -> str:
        const(f"{name}_q", rng.integers(-127, 128, (rows, columns)), np.int8)
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", const(f"{name}_scale", 0.02), const(f"{name}_zero", 0, np.int8)], [name])
        )
        return name

    def node(kind: str, *inputs: str) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name]))
        return name

    x = pair(node("MatMul", pair("x", 0.04, 9), weights("w", 8, 16)), 0.06, -5)
    if parts == "gelu":
        half, root, one = const("half", 0.5), const("root", 2**0.5), const("one", 1.0)
        gate = pair(node("Add", pair(node("Erf", pair(node("Div", x, root), 0.04)), 0.008), one), 0.008, -120)
        y = pair(node("Mul", pair(node("Mul", x, gate), 0.06, -90), half), 0.03, -100)
    else:
        y = pair(node(parts, x), 0.01, 2)
    result = pair(node("MatMul", y, weights("v", 16, 4)), 0.05)
    graph = helper.make_graph(nodes, "m", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 8])],
                              [helper.make_tensor_value_info(result, TensorProto.FLOAT, [3, 4])], constants)  # fmt: skip
    assert kind  # the type that QuantizeLinear takes from its zero point
    onnx.save(model_of(graph, 21), path)
    return path


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("parts", ["gelu", "Erf", "Sinh"])
@pytest.mark.parametrize("activations", ["uint8", "int8", "int16", "uint16"])
def test_spelled_out_functions_run_in_litert_and_come_back(activations: str, parts: str, tmp_path: Path) -> None:
    source = model(tmp_path / "m.onnx", activations, parts)
    report = qconvert.convert(source, tmp_path / "m.tflite")
    assert any("are lookup tables" in change.text for change in report.changes)
    assert not any(op.kind == "Mod" for op in qconvert.load(tmp_path / "m.tflite").ops), (
        "indices that are never negative are read as they are"
    )
    checked = qconvert.check(source, tmp_path / "m.tflite", per_op=True)
    assert checked.passed, checked.problems
    qconvert.convert(tmp_path / "m.tflite", tmp_path / "back.onnx")
    again = qconvert.check(tmp_path / "m.tflite", tmp_path / "back.onnx")
    assert again.passed, again.problems


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize(("activations", "off"), [("int8", 50), ("int8", 1), ("uint16", 60)])
def test_a_table_with_a_wrong_value_is_found(activations: str, off: int, tmp_path: Path) -> None:
    """At a code that no input of the check reaches, so that only the table itself shows it; of uint16 data with a symmetric
    quantization."""
    from qconvert.conversion.loading import load

    source = model(tmp_path / "m.onnx", activations)
    qconvert.convert(source, tmp_path / "m.tflite")
    data = bytearray((tmp_path / "m.tflite").read_bytes())
    graph = load(tmp_path / "m.tflite")
    (table,) = [graph.constant(op.inputs[0]) for op in graph.ops if op.kind == "Gather"]
    assert table is not None
    place = 0 if activations == "int8" else 3 * table.size // 4
    at = bytes(data).index(table.tobytes()) + place * table.itemsize
    value = np.frombuffer(data, table.dtype, 1, at)[0]
    data[at : at + table.itemsize] = np.array([int(value) + off if value < 0 else int(value) - off], table.dtype).tobytes()
    (tmp_path / "m.tflite").write_bytes(bytes(data))
    checked = qconvert.check(source, tmp_path / "m.tflite")
    assert not checked.passed and any("no tensor of the result corresponds to it" in problem for problem in checked.problems)


FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("source", ["qonnx/residual.onnx", "onnx/torch_fx_fbgemm_attention.onnx", "onnx/torch_fx_qat_vision.onnx"])
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_chains_of_exporters_are_tables_that_the_check_finds(source: str, suffix: str, tmp_path: Path) -> None:
    """Any layout suits a table: no Transpose stands around it."""
    report = qconvert.convert(FIXTURES / source, tmp_path / f"m.{suffix}", passes=["unary_to_table"], tables="chains")
    assert any(change.by == "unary_to_table" and change.text.startswith("chains") for change in report.changes)
    checked = qconvert.check(FIXTURES / source, tmp_path / f"m.{suffix}", per_op=True)
    assert checked.passed, checked.problems
    graph = qconvert.load(tmp_path / f"m.{suffix}")
    producers = graph.producers()
    found = [lookup for op in graph.ops if (lookup := find_lookup(graph, producers, op)) is not None]
    assert found
    if source == "qonnx/residual.onnx":
        assert [op.kind for op in graph.ops].count("Transpose") == (1 if suffix == "tflite" else 0)


@pytest.mark.formats
def test_a_table_behind_a_transpose_is_one_too() -> None:
    table = constant("table", np.arange(256).astype(np.uint8)[::-1].copy(), q(0.1))
    tensors = [Tensor("x", "uint8", (2, 3), None, q(0.2)), Tensor("c", "int32", (2, 3)), Tensor("t", "int32", (3, 2)), table,
               Tensor("y", "uint8", (3, 2), None, q(0.1))]  # fmt: skip
    ops = [Op("Cast", ("x",), ("c",), {"to": "int32"}), Op("Transpose", ("c",), ("t",), {"perm": (1, 0)}),
           Op("Gather", ("table", "t"), ("y",), {"axis": 0})]  # fmt: skip
    graph = make(ops, tensors, "x", "y")
    lookup = find_lookup(graph, graph.producers(), graph.ops[-1])
    assert lookup is not None and lookup.root == "x" and lookup.values.tolist() == list(range(255, -1, -1))
