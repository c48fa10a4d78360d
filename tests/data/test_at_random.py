"""Random inputs lie within what a graph's operators take, and generated models run on them at the first try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx import load as load_proto
from onnx import save as save_proto
from onnx_nodes import model_of
from refusals import refused

from qconvert import Graph, Op, Quantization, Tensor, load
from qconvert.data import accepted_inputs, random_inputs
from qconvert.data.input_limits import input_bounds, number_of, sizes_to_try
from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.runtimes.onnxruntime import OnnxRuntime

pytestmark = pytest.mark.onnxruntime

FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
Inputs = Mapping[str, tuple[int, Sequence[int | str]]]


def node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), output.split(), **attributes)


def written(folder: Path, nodes: Sequence[Any], inputs: Inputs, output: int = FLOAT, opset: int = 17, **constants: Any) -> Path:
    """A model whose last node computes its output."""
    result = nodes[-1].output[0]
    graph = helper.make_graph(
        nodes, "made",
        [helper.make_tensor_value_info(name, dtype, list(shape)) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(result, output, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    path = folder / "m.onnx"
    path.write_bytes(model_of(graph, opset).SerializeToString())
    return path


def ran(path: Path, samples: int = 4) -> tuple[Graph, list[dict[str, Any]], list[dict[str, Any]], str]:
    """The model's graph, the inputs that onnxruntime took, what it gave, and what had to be chosen otherwise."""
    graph = load(path)
    runtime = OnnxRuntime(path, optimize=False)
    feeds, computed, note = accepted_inputs(graph, samples, 0, runtime.run)
    return graph, feeds, computed, note


TABLE = np.arange(300 * 4, dtype=np.float32).reshape(300, 4)
SMALL = TABLE[:5]
SIX = (INT64, [6])
SIX = (INT64, [6])

#: Name -> nodes, inputs, constants, and bounds of the input "i".
INDICES: dict[str, tuple[list[Any], Inputs, dict[str, Any], tuple[int, int]]] = {
    "a table": ([node("Gather", "t i", "y")], {"i": (INT64, [7])}, {"t": TABLE}, (0, 299)),
    "a small table": ([node("Gather", "t i", "y")], {"i": (INT64, [7])}, {"t": SMALL}, (0, 4)),
    "another axis": ([node("Gather", "t i", "y", axis=1)], {"i": (INT32, [7])}, {"t": TABLE}, (0, 3)),
    "after a cast": ([node("Cast", "i", "c", to=INT64), node("Gather", "t c", "y")], {"i": (INT32, [7])}, {"t": SMALL}, (0, 4)),
    "after a cast of floats": ([node("Cast", "i", "c", to=INT64), node("Gather", "t c", "y")], {"i": (FLOAT, [7])}, {"t": SMALL}, (0, 4)),
    "after data movement": (
        [node("Unsqueeze", "i a", "u"), node("Transpose", "u", "v", perm=[1, 0]), node("Reshape", "v s", "w"), node("Gather", "t w", "y")],
        {"i": SIX}, {"a": np.array([0]), "s": np.array([2, 3]), "t": SMALL}, (0, 4),
    ),
    "joined": ([node("Concat", "i k", "c", axis=0), node("Gather", "t c", "y")], {"i": SIX}, {"k": np.array([1, 2]), "t": SMALL}, (0, 4)),
    "shifted": ([node("Add", "i one", "n"), node("Gather", "t n", "y")], {"i": SIX}, {"one": np.int64(2), "t": SMALL}, (0, 2)),
    "shifted back": ([node("Sub", "i one", "n"), node("Gather", "t n", "y")], {"i": SIX}, {"one": np.int64(2), "t": SMALL}, (2, 6)),
    "from the end": ([node("Sub", "four i", "n"), node("Gather", "t n", "y")], {"i": SIX}, {"four": np.int64(4), "t": SMALL}, (0, 4)),
    "doubled": ([node("Mul", "i two", "n"), node("Gather", "t n", "y")], {"i": SIX}, {"two": np.int64(2), "t": SMALL}, (0, 2)),
    "two tables": ([node("Gather", "t i", "a"), node("Gather", "s i", "b"), node("Add", "a b", "y")], {"i": SIX},
                   {"t": TABLE, "s": SMALL}, (0, 4)),
    "elements": ([node("GatherElements", "t i", "y", axis=0)], {"i": (INT64, [2, 4])}, {"t": SMALL}, (0, 4)),
    "coordinates": ([node("GatherND", "t i", "y")], {"i": (INT64, [3, 2])}, {"t": SMALL}, (0, 3)),
    "one hot": ([node("OneHot", "i d v", "y")], {"i": (INT64, [5])}, {"d": np.int64(3), "v": np.array([0, 1], np.float32)}, (0, 2)),
    "lengths": ([node("ReverseSequence", "x i", "y", time_axis=0, batch_axis=1)], {"x": (FLOAT, [4, 3]), "i": (INT64, [3])}, {}, (1, 4)),
    "a divisor": ([node("Div", "n i", "y")], {"i": (INT64, [5])}, {"n": np.arange(5)}, (1, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_indices_are_those_of_the_table(name: str, tmp_path: Path) -> None:
    nodes, inputs, constants, (low, high) = INDICES[name]
    path = written(tmp_path, nodes, inputs, INT64 if name == "a divisor" else FLOAT, **constants)
    _, feeds, _, note = ran(path, 100)
    values = np.concatenate([np.asarray(feed["i"]).reshape(-1) for feed in feeds])
    assert note == ""
    if values.dtype.kind == "f":
        assert low <= values.min() < low + 0.5 and high - 0.5 < values.max() <= high
    else:
        assert (values.min(), values.max()) == (low, high)


def test_rows_belong_to_segments_that_there_are() -> None:
    tensors = [
        Tensor("x", "float32", (6, 2)),
        Tensor("i", "int64", (6,)),
        Tensor("n", "int64", (), np.array(4)),
        Tensor("y", "float32", (4, 2)),
    ]
    op = Op("UnsortedSegment", ("x", "i", "n"), ("y",), {"reduction": "max"})
    graph = Graph("g", {tensor.name: tensor for tensor in tensors}, (op,), ("x", "i"), ("y",))
    found = np.concatenate([feed["i"] for feed in random_inputs(graph, 20, 0)])
    assert (found.min(), found.max()) == (0, 3)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_quantized_roots_get_positive_numbers(dtype: str) -> None:
    """LiteRT's RSQRT refuses to run on others."""
    q = Quantization.per_tensor(0.02, -100 if dtype == "int8" else 0)
    tensors = [Tensor("x", "float32", (400,)), Tensor("w", dtype, (400,), None, q), *(Tensor(n, dtype, (400,), None, q) for n in "vyz")]
    ops = [Op("Quantize", ("x",), ("v",)), Op("Rsqrt", ("v",), ("y",)), Op("Rsqrt", ("w",), ("z",))]
    feeds = random_inputs(Graph("g", {tensor.name: tensor for tensor in tensors}, tuple(ops), ("x", "w"), ("y", "z")), 5, 0)
    assert min(feed["x"].min() for feed in feeds) >= 0.02
    assert 0 < min(int(feed["w"].min()) for feed in feeds) - q.point < 100


def test_a_clipped_index_is_free(tmp_path: Path) -> None:
    nodes = [node("Clip", "i a b", "c"), node("Gather", "t c", "y")]
    path = written(tmp_path, nodes, {"i": (INT64, [7])}, a=np.int64(0), b=np.int64(4), t=SMALL)
    graph, feeds, _, _ = ran(path, 30)
    assert input_bounds(graph, number_of({})) == {"i": (-np.inf, np.inf)}
    assert max(feed["i"].max() for feed in feeds) == 8


REAL = {
    "Log": ([node("Log", "x", "y")], {}),
    "Sqrt": ([node("Sqrt", "x", "y")], {}),
    "Reciprocal": ([node("Reciprocal", "x", "y")], {}),
    "Log of a sum": ([node("Add", "x c", "s"), node("Log", "s", "y")], {"c": np.float32(0.25)}),
    "Log of a clipped value": ([node("Relu", "x", "r"), node("Add", "r c", "s"), node("Log", "s", "y")], {"c": np.float32(1e-3)}),
    "a divisor": ([node("Transpose", "x", "t"), node("Div", "c t", "y")], {"c": np.float32(1)}),
    "a root by a power": ([node("Pow", "x c", "y")], {"c": np.float32(0.5)}),
}


@pytest.mark.parametrize("name", REAL)
def test_real_values_have_finite_results(name: str, tmp_path: Path) -> None:
    nodes, constants = REAL[name]
    _, feeds, computed, note = ran(written(tmp_path, nodes, {"x": (FLOAT, [40, 5])}, **constants), 20)
    found = np.stack([next(iter(outputs.values())) for outputs in computed])
    assert np.isfinite(found).all() and np.abs(found).max() < 200 and note == ""
    assert np.unique(np.stack([feed["x"] for feed in feeds])).size > 3000


def test_no_row_is_masked_out(tmp_path: Path) -> None:
    nodes = [node("Where", "m x low", "w"), node("Softmax", "w", "y")]
    path = written(tmp_path, nodes, {"m": (BOOL, [4, 3]), "x": (FLOAT, [4, 3])}, low=np.float32(-np.inf))
    _, feeds, computed, _ = ran(path, 30)
    assert np.isfinite(np.stack([outputs["y"] for outputs in computed])).all()
    assert not all(feed["m"].all() for feed in feeds)


def test_integer_masks_and_lengths_by_name(tmp_path: Path) -> None:
    casts = [node("Cast", "attention_mask", "m", to=FLOAT), node("Cast", "lengths", "l", to=FLOAT)]
    nodes = [*casts, node("Mul", "x m", "z"), node("Add", "z l", "y")]
    inputs: Inputs = {"x": (FLOAT, ["n", 6]), "attention_mask": (INT64, ["n", 6]), "lengths": (INT64, ["n", 1])}
    _, feeds, _, _ = ran(written(tmp_path, nodes, inputs), 50)
    masks = np.concatenate([feed["attention_mask"] for feed in feeds])
    assert set(masks.reshape(-1)) == {0, 1} and (masks[:, 0] == 1).all()
    assert {int(feed["lengths"].max()) for feed in feeds} == {1, 2, 3, 4, 5, 6}


def test_one_name_is_one_size_in_all_inputs(tmp_path: Path) -> None:
    nodes = [node("Concat", "past x", "k", axis=1), node("Add", "k mask", "y")]
    inputs: Inputs = {"past": (FLOAT, ["b", "past", 3]), "x": (FLOAT, ["b", "seq", 3]), "mask": (FLOAT, ["b", "past + seq", 1])}
    graph, feeds, _, note = ran(written(tmp_path, nodes, inputs), 1)
    assert note == "" and feeds[0]["mask"].shape[1] == feeds[0]["past"].shape[1] + feeds[0]["x"].shape[1]
    for sizes in sizes_to_try(graph):
        (feed,) = random_inputs(graph, 1, 0, sizes=sizes)
        OnnxRuntime(tmp_path / "m.onnx", optimize=False).run(feed)


#: Name -> nodes, shape of the input x, constants, and the size that the model demands.
DEMANDED: dict[str, tuple[list[Any], list[int | str], dict[str, Any], int]] = {
    "a reshape": ([node("Reshape", "x s", "y")], ["n", "k", 4], {"s": np.array([-1, 28])}, 7),
    "a whole reshape": ([node("Reshape", "x s", "y")], [1, "k", 4], {"s": np.array([3, 4, 4])}, 12),
    "positions": ([node("Add", "x p", "y")], ["n", "k", 4], {"p": np.ones((1, 77, 4), np.float32)}, 77),
    "a product": ([node("MatMul", "x w", "y")], ["n", "k"], {"w": np.ones((9, 2), np.float32)}, 9),
    "channels": ([node("Conv", "x w", "y")], ["n", "k", 6, 6], {"w": np.ones((2, 5, 3, 3), np.float32)}, 5),
    "a part": ([node("Split", "x s", "a y", axis=1)], ["n", "k"], {"s": np.array([2, 3])}, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", DEMANDED)
def test_sizes_that_constants_demand(name: str, tmp_path: Path) -> None:
    nodes, shape, constants, size = DEMANDED[name]
    _, feeds, _, note = ran(written(tmp_path, nodes, {"x": (FLOAT, shape)}, **constants), 1)
    assert feeds[0]["x"].shape[1] == size and note == ""


@pytest.mark.parametrize(("stated", "sizes"), [(None, (1, 3, 28, 28)), (["n", 4, 40, 24], (1, 3, 80, 48))])
def test_sizes_that_strides_and_inner_tensors_suggest(stated: list[int | str] | None, sizes: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a", strides=[2, 2], pads=[1] * 4), node("MaxPool", "a", "y", kernel_shape=[2, 2], strides=[2, 2])]
    path = written(tmp_path, nodes, {"x": (FLOAT, ["n", 3, "h", "w0"])}, w=np.ones((4, 3, 3, 3), np.float32))
    if stated is not None:
        model = load_proto(path)
        model.graph.value_info.append(helper.make_tensor_value_info("a", FLOAT, stated))
        save_proto(model, path)
    _, feeds, _, note = ran(path, 1)
    assert feeds[0]["x"].shape == sizes and note == ""


def test_sizes_that_windows_of_integers_suggest(tmp_path: Path) -> None:
    inputs: Inputs = {"x": (TensorProto.UINT8, ["n", 3, "h", "w0"])}
    path = written(
        tmp_path, [node("ConvInteger", "x w", "y", strides=[2, 2])], inputs, TensorProto.INT32, w=np.ones((4, 3, 3, 3), np.uint8)
    )
    _, feeds, _, note = ran(path, 1)
    assert feeds[0]["x"].shape == (1, 3, 14, 14) and note == ""


def test_sizes_that_only_the_runtime_knows_grow(tmp_path: Path) -> None:
    path = written(tmp_path, [node("Conv", "x w", "y")], {"x": (FLOAT, ["n", 1, "h", "h"])}, w=np.ones((1, 1, 7, 7), np.float32))
    _, feeds, _, note = ran(path, 1)
    assert feeds[0]["x"].shape == (2, 1, 16, 16)
    assert note == "dynamic dimensions are n 2, h 16: the source refuses others"


def test_what_has_no_random_values_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, [node("Identity", "x", "y")], {"x": (TensorProto.STRING, [2])}, TensorProto.STRING)
    try:
        graph = load(path)
    except Exception:
        pytest.skip("strings are not read")
    with refused(OptionError, "type-without-random", where="input 'x'"):
        random_inputs(graph, 1, 0)


def test_a_model_that_refuses_everything_is_quoted(tmp_path: Path) -> None:
    path = written(tmp_path, [node("Identity", "x", "y")], {"x": (INT64, ["n"])}, INT64)

    def refuse(feed: Mapping[str, Any]) -> dict[str, Any]:
        raise RuntimeRefusedError(f"no {feed['x'].shape}")

    with pytest.raises(RuntimeRefusedError, match=r"no \(1,\)"):
        accepted_inputs(load(path), 1, 0, refuse)


@pytest.mark.cross_section
def test_a_result_that_is_no_number_asks_for_larger_inputs(tmp_path: Path) -> None:
    """The deviation of a single value, divided by itself; and lengths of sound are at most the sound."""
    nodes = [
        node("ReduceMean", "x", "mean", keepdims=1), node("Sub", "x mean", "off"), node("Abs", "off", "far"),
        node("ReduceMax", "far", "most", keepdims=1), node("Div", "off most", "z"),
        node("Cast", "waveforms_lens", "l", to=FLOAT), node("Add", "z l", "y"),
    ]  # fmt: skip
    inputs: Inputs = {"x": (FLOAT, ["batch", "n"]), "waveforms_lens": (INT64, ["batch", 1])}
    _, feeds, computed, note = ran(written(tmp_path, nodes, inputs), 3)
    assert not any(np.isnan(value).any() for outputs in computed for value in outputs.values())
    assert "NaN with others" in note
    assert all(feed["waveforms_lens"].min() >= 1 and feed["waveforms_lens"].max() <= feed["x"].shape[1] for feed in feeds)
