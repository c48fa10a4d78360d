"""torch.export archives: whole networks give what PyTorch gives, with its integers and scales; the parts of a program one by one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import InvalidModelError, QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.graph import Graph
from tests.torch_export import Wrapped, node, program, read, run, saved, write
from tests.torch_export_models import zipped

pytestmark = pytest.mark.formats

_FIXTURES = Path(__file__).parents[3] / "fixtures" / "torch"
_NETWORKS = sorted(str(path.relative_to(_FIXTURES))[:-4] for path in _FIXTURES.rglob("*.pt2") if path.parent.name != "shapes")


def _constants(graph: Graph) -> list[Any]:
    return [tensor for tensor in graph.constants() if tensor.is_quantized]


@pytest.mark.parametrize("name", _NETWORKS)
def test_a_network_gives_what_pytorch_gives(name: str) -> None:
    graph = read(_FIXTURES / f"{name}.pt2")
    expected = np.load(_FIXTURES / f"{name}.npz")
    found = run(graph, *(expected[f"input_{index}"] for index in range(len(graph.inputs))))
    for index, values in enumerate(found):
        wanted = expected[f"output_{index}"]
        assert values.shape == wanted.shape and np.allclose(values, wanted, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("name", [name for name in _NETWORKS if "float" not in name])
def test_the_integers_and_scales_are_the_files(name: str) -> None:
    graph, expected = read(_FIXTURES / f"{name}.pt2"), np.load(_FIXTURES / f"{name}.npz")
    constants = _constants(graph)
    weights = [key for key in expected.files if key.endswith(("/weight", "/qdata")) or "frozen_param" in key]
    for key in weights:
        scale = expected[key.replace("frozen_param", "scale_") if "frozen" in key else f"{key.rpartition('/')[0]}/scale"]
        same = [tensor for tensor in constants if np.array_equal(tensor.data, expected[key])]
        assert same and np.array_equal(same[0].quantization.scale.reshape(-1), scale.reshape(-1).astype(np.float32))


@pytest.mark.parametrize("name", [name for name in _NETWORKS if "qat" in name])
def test_a_network_before_convert_has_its_normalization_in_biases(name: str) -> None:
    graph = read(_FIXTURES / f"{name}.pt2")
    assert {op.kind for op in graph.ops}.isdisjoint({"BatchNormalization", "Div", "Sqrt"})
    assert all(graph[name].is_quantized for op in graph.ops if op.kind == "Conv" for name in op.inputs[:2])


_X = {"x": ("float32", (2, 3))}


def _archive(
    path: Path, nodes: list[Any], weights: dict[str, Any], *, inputs: Any = None, outputs: Any = ("y",), early: bool | str = False
) -> Path:
    return write(path / "m.pt2", program(nodes, inputs or _X, outputs, weights), weights, early)


def _linear(weight: str) -> dict[str, Any]:
    return node("aten.linear.default", "y", input="%x", weight=weight)


def _reals(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("early", [False, True, "2.8"])
def test_every_layout_of_the_archive_is_read(tmp_path: Path, early: bool | str) -> None:
    weight, x = _reals((4, 3)), _reals((2, 3), 1)
    graph = read(_archive(tmp_path, [_linear("%b_w")], {"w": weight}, early=early))
    assert np.allclose(run(graph, x)[0], x @ weight.T, atol=1e-6) and "w" in graph.tensors


@pytest.mark.parametrize("point", [0, 3])
def test_real_weights_behind_a_quantize_become_the_integers_that_pytorch_computes(tmp_path: Path, point: int) -> None:
    """clamp(rint(x * float32(1 / s)) + zp): a tie and the last bit of the reciprocal make others than x / s does."""
    scales = np.array([0.1, 0.3, 0.007, 1e-5], np.float32)
    weight = (scales[:, None] * (np.arange(-60, 60, dtype=np.float32) + 0.5)[None, :]).astype(np.float32)
    points = np.full(4, point, np.int64)
    limits = {"quant_min": -127, "quant_max": 127, "dtype": "int8"}
    nodes = [
        node("quantized_decomposed.quantize_per_channel.default", "q", input="%b_w", scales="%b_s", zero_points="%b_z", axis=0, **limits),
        node("quantized_decomposed.dequantize_per_channel.default", "d", input="%q", scales="%b_s", zero_points="%b_z", axis=0, **limits),
        _linear("%d"),
    ]
    weights = {"w": weight, "s": scales, "z": points}
    graph = read(_archive(tmp_path, nodes, weights, inputs={"x": ("float32", (2, 120))}))
    (stored,) = _constants(graph)
    inverse = (1 / scales.astype(np.float64)).astype(np.float32)[:, None]
    wanted = np.clip(np.rint(weight * inverse) + point, -127, 127)
    assert np.array_equal(stored.data, wanted) and stored.name == "w" and stored.quantization.quant_min == -127
    assert (wanted != np.clip(np.rint(weight / scales[:, None]) + point, -127, 127)).any()


@pytest.mark.parametrize(
    ("blocks", "shape", "axis", "block"),
    [((4, 6), (1, 1), None, 0), ((1, 6), (4, 1), 0, 0), ((4, 1), (1, 6), 1, 0), ((1, 3), (4, 2), 1, 3), ((2, 1), (2, 6), 0, 2),
     ((2, 3), (2, 2), 1, 3), ((1, 1), (4, 6), 1, 1)],
)  # fmt: skip
def test_scales_of_blocks_of_any_shape(
    tmp_path: Path, blocks: tuple[int, int], shape: tuple[int, int], axis: int | None, block: int
) -> None:
    random = np.random.default_rng(3)
    stored = random.integers(-8, 8, (4, 6)).astype(np.int8)
    scales, points = random.uniform(0.1, 1, shape).astype(np.float32), random.integers(-2, 3, shape).astype(np.int8)
    call = {"block_size": list(blocks), "scale": "%b_s", "zero_point": "%b_z", "input_dtype": "int8", "quant_min": -8, "quant_max": 7}
    nodes = [node("torchao.dequantize_affine.default", "d", input="%b_w", **call), _linear("%d")]
    weights = {"w": stored, "s": scales, "z": points}
    graph = read(_archive(tmp_path, nodes, weights, inputs={"x": ("float32", (2, 6))}))
    (tensor,) = _constants(graph)
    quantization = tensor.quantization
    assert np.array_equal(tensor.data, stored) and (quantization.axis, quantization.block_size) == (axis, block)
    assert (quantization.quant_min, quantization.quant_max) == (-8, 7)
    full = [np.repeat(np.repeat(item, blocks[0], 0), blocks[1], 1).astype(np.float32) for item in (scales, points)]
    x = _reals((2, 6))
    assert np.allclose(run(graph, x)[0], x @ ((stored - full[1]) * full[0]).T, atol=1e-5)


@pytest.mark.parametrize("first", ["to", "t"])
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("shape", [(4,), (1, 4), (1,)])
def test_scales_behind_a_product_of_integers_are_its_weights(tmp_path: Path, shape: tuple[int, ...], others: bool, first: str) -> None:
    random = np.random.default_rng(5)
    stored, scales = random.integers(-128, 128, (4, 3)).astype(np.int8), random.uniform(0.01, 1, shape).astype(np.float32)
    nodes = [
        node("aten.to.dtype", "real", self="%b_w" if first == "to" else "%turned", dtype="float32"),
        node("aten.t.default", "turned", self="%real" if first == "to" else "%b_w"),
        node("aten.mm.default", "sum", self="%x", mat2="%turned" if first == "to" else "%real"),
        node("aten.mul.Tensor", "y", self="%sum", other="%b_s"),
    ]
    nodes = nodes if first == "to" else [nodes[1], nodes[0], *nodes[2:]]
    x = _reals((2, 3))
    graph = read(_archive(tmp_path, nodes, {"w": stored, "s": scales}, outputs=("y", "sum") if others else ("y",)))
    (tensor,) = [tensor for tensor in graph.constants() if tensor.is_quantized]
    assert np.array_equal(tensor.data, stored if tensor.data.shape == (4, 3) else stored.T)
    assert np.array_equal(tensor.quantization.scale, [1.0] if others else scales.reshape(-1))
    assert any(op.kind == "Mul" for op in graph.ops) == others
    assert np.allclose(run(graph, x)[0], (x @ stored.T.astype(np.float32)) * scales, rtol=1e-5, atol=1e-5)


def test_a_tensor_that_keeps_others_inside_is_read_by_its_parts(tmp_path: Path) -> None:
    stored, scales = np.arange(12, dtype=np.int8).reshape(4, 3), np.array([[0.1], [0.2], [0.3], [0.4]], np.float32)
    parts = {"qdata": stored, "scale": scales, "block_size": [1, 3], "act_quant_kwargs": None}
    wrapped = Wrapped("torchao.quantization.Int8Tensor", (4, 3), parts)
    nodes = [
        node("export.access_subclass_inner_tensor.default", "q", src_subclass_tensor="%b_w", attr="qdata"),
        node("export.access_subclass_inner_tensor.default", "s", src_subclass_tensor="%b_w", attr="scale"),
        node("torchao.dequantize_affine.default", "d", input="%q", block_size=[1, 3], scale="%s", zero_point=None, input_dtype="int8"),
        _linear("%d"),
    ]
    document = program(nodes, _X, ["y"], {"w": stored})
    graph = read(write(tmp_path / "m.pt2", document, {"w": wrapped}, early=True))  # type: ignore[dict-item]
    (tensor,) = _constants(graph)
    assert tensor.name == "w" and np.array_equal(tensor.data, stored) and np.array_equal(tensor.quantization.scale, scales.reshape(-1))
    wrapped.class_name = "torchao.quantization.Float8Tensor"
    with refused(UnsupportedError, "class-not-covered", holds=("torchao.quantization.Float8Tensor",)):
        read(write(tmp_path / "f.pt2", document, {"w": wrapped}, early=True))  # type: ignore[dict-item]


def test_saved_dictionaries_are_what_the_helper_says() -> None:
    assert saved({"a": np.zeros(3, np.float32)})[:2] == b"PK"


@pytest.mark.parametrize("limits", [(-128, 127), (0, 255), (0, 127), (-8, 7), (-32768, 32767), (0, 65535)])
@pytest.mark.parametrize("form", ["numbers", "tensors", "observed", "learned", "masked"])
def test_a_fake_quantization_rounds_onto_its_quantization(tmp_path: Path, limits: tuple[int, int], form: str) -> None:
    low, high = limits
    point = (low + high) // 2
    call = {"quant_min": low, "quant_max": high}
    tensors = {"scale": "%b_s", "zero_point": "%b_z"}
    ones = {"observer_on": "%b_off", "fake_quant_on": "%b_on", "running_min": "%b_s", "running_max": "%b_s", "averaging_const": 0.01}
    made = {
        "numbers": node("aten.fake_quantize_per_tensor_affine.default", "y", self="%x", scale=0.1, zero_point=point, **call),
        "tensors": node("aten.fake_quantize_per_tensor_affine.tensor_qparams", "y", self="%x", **tensors, **call),
        "observed": node("aten.fused_moving_avg_obs_fake_quant.default", "y", self="%x", **ones, **tensors, **call, ch_axis=-1),
        "learned": node("aten._fake_quantize_learnable_per_tensor_affine.default", "y", self="%x", scale="%b_s", zero_point="%b_r", **call),
        "masked": node("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default", ["y", "mask"], self="%x",
                       fake_quant_enabled="%b_on", **tensors, **call),
    }  # fmt: skip
    weights = {
        "s": np.array([0.1], np.float32), "z": np.array([point], np.int32), "r": np.array([point + 0.4], np.float32),
        "on": np.array([1], np.int64), "off": np.array([0], np.int64),
    }  # fmt: skip
    graph = read(_archive(tmp_path, [made[form]], weights, inputs={"x": ("float32", (1000,))}))
    x = (np.random.default_rng(0).normal(size=1000) * 0.08 * (high - low)).astype(np.float32)
    wanted = (np.clip(np.rint(x * np.float32(10)) + point, low, high) - point) * np.float32(0.1)
    found = run(graph, x)[0]
    assert np.abs(found - wanted).max() < 2e-3 * max(1, (high - low) / 1000) and (found == wanted.astype(np.float32)).mean() > 0.999
    assert found.max() < 0.1 * (high - point) + 1e-2


def test_an_observer_that_is_still_on_is_said(tmp_path: Path) -> None:
    from qconvert.conversion.report import remarks

    ones = {"observer_on": "%b_on", "fake_quant_on": "%b_on", "running_min": "%b_s", "running_max": "%b_s", "averaging_const": 0.01}
    made = node("aten.fused_moving_avg_obs_fake_quant.default", "y", self="%x", **ones, scale="%b_s", zero_point="%b_on", quant_min=0,
                quant_max=255, ch_axis=-1)  # fmt: skip
    graph = read(_archive(tmp_path, [made], {"s": np.array([0.1], np.float32), "on": np.array([1], np.int64)}))
    said = "\n".join(remarks(graph))
    assert "the file stores" in said and "enabled ('y')" in said


def test_what_no_output_needs_is_not_read(tmp_path: Path) -> None:
    nodes = [node("aten.unheard_of.default", "z", self="%x"), node("aten.relu.default", "y", self="%x")]
    assert [op.kind for op in read(_archive(tmp_path, nodes, {})).ops] == ["Relu"]


def test_operators_that_are_not_covered_are_listed_together(tmp_path: Path) -> None:
    nodes = [
        node("aten.unheard_of.default", "a", self="%x"),
        node("aten.unheard_of.default", "b", self="%a"),
        node("mine.own.default", "y", self="%b"),
    ]
    with refused(UnsupportedError, "several-not-covered", holds=("aten::unheard_of (2 times, first (a))", "mine::own ((y))")):
        read(_archive(tmp_path, nodes, {}))


@pytest.mark.parametrize("several", [True, False])
def test_a_body_that_runs_without_gradients_is_part_of_the_program(tmp_path: Path, several: bool) -> None:
    body = {
        "inputs": [{"as_tensor": {"name": "a"}}],
        "outputs": [{"as_tensor": {"name": "r"}}],
        "nodes": [node("aten.relu.default", "r", self="%a")],
        "tensor_values": {},
    }
    wrapper = node("higher_order.wrap_with_set_grad_enabled", ["y"] if several else "y")
    wrapper["inputs"] = [{"name": "", "arg": {"as_bool": False}}, {"name": "", "arg": {"as_graph": {"name": "sub", "graph": body}}},
                         {"name": "", "arg": {"as_tensor": {"name": "x"}}}]  # fmt: skip
    graph = read(_archive(tmp_path, [wrapper], {}))
    assert [op.kind for op in graph.ops] == ["Relu"] and graph.outputs == ("r",)


def test_a_buffer_that_the_program_changes_is_a_state(tmp_path: Path) -> None:
    nodes = [node("aten.add.Tensor", "y", self="%b_total", other="%x")]
    weights = {"total": np.ones((2, 3), np.float32)}
    graph = read(write(tmp_path / "m.pt2", program(nodes, _X, ["y"], weights, {"total": "y"}), weights))
    assert list(graph.states) == ["total"] and {"ReadState", "WriteState"} <= {op.kind for op in graph.ops}
    states: dict[str, Any] = {}
    x = _reals((2, 3))
    first, second = (evaluate(graph, {"x": x}, states)[graph.outputs[0]] for _ in range(2))
    assert np.array_equal(first, 1 + x) and np.array_equal(second, (1 + x) + x)


def test_a_buffer_that_is_changed_in_place_is_a_state_only_if_something_reads_it(tmp_path: Path) -> None:
    nodes = [node("aten.add_.Tensor", "t", self="%b_count", other=1), node("aten.relu.default", "y", self="%x")]
    graph = read(_archive(tmp_path, nodes, {"count": np.zeros((), np.int64)}))
    assert not graph.states and [op.kind for op in graph.ops] == ["Relu"]


def test_a_change_in_place_is_seen_by_whoever_reads_the_tensor_later(tmp_path: Path) -> None:
    nodes = [
        node("aten.relu.default", "a", self="%x"),
        node("aten.add_.Tensor", "b", self="%a", other=2.0),
        node("aten.neg.default", "y", self="%a"),
    ]
    x = _reals((2, 3))
    assert np.array_equal(run(read(_archive(tmp_path, nodes, {})), x)[0], -(np.maximum(x, 0) + 2))


def test_a_view_that_is_changed_changes_what_it_is_a_view_of(tmp_path: Path) -> None:
    nodes = [
        node("aten.relu.default", "a", self="%x"),
        node("aten.view.default", "v", self="%a", size=[6]),
        node("aten.add_.Tensor", "b", self="%v", other=2.0),
        node("aten.add.Tensor", "y", self="%a", other="%a"),
    ]
    nodes.append(node("aten.sum.default", "z", self="%b"))
    x = _reals((2, 3))
    y, z = run(read(_archive(tmp_path, nodes, {}, outputs=("y", "z"))), x)
    assert np.array_equal(y, 2 * (np.maximum(x, 0) + 2)) and np.isclose(z, (np.maximum(x, 0) + 2).sum())


def test_changes_through_long_chains_of_views_end_in_one_error(tmp_path: Path) -> None:
    nodes = [node("aten.relu.default", "v0", self="%x")]
    nodes += [node("aten.view.default", f"v{index + 1}", self=f"%v{index}", size=[2, 3]) for index in range(150)]
    nodes += [node("aten.add_.Tensor", f"a{index}", self="%v150", other=1) for index in range(150)]
    with refused(InvalidModelError, "too-many-views"):
        read(_archive(tmp_path, [*nodes, node("aten.neg.default", "y", self="%v0")], {}))


def test_tensors_that_repeat_few_elements_are_bounded_together(tmp_path: Path) -> None:
    path = _archive(tmp_path, [_linear("%b_w")], {"w": _reals((4, 3)), **{f"w{index}": _reals((4, 3)) for index in range(80)}})
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    key = "m/data/weights/model_weights_config.json"
    config = json.loads(entries[key])
    for entry in config["config"].values():
        entry["tensor_meta"] |= {"sizes": [{"as_int": 1024}] * 2, "strides": [{"as_int": 0}] * 2}
    zipped(path, {**entries, key: json.dumps(config)}, root="")
    with refused(InvalidModelError, "damaged-tensor", where="w3", holds=(12,)):
        read(path)


@pytest.mark.parametrize("reads_before", [False, True])
def test_a_part_of_a_buffer_that_is_changed_is_kept_for_the_next_run(tmp_path: Path, reads_before: bool) -> None:
    nodes = [
        node("aten.slice.Tensor", "part", self="%b_k", dim=0, start=2, end=4),
        node("aten.copy_.default", "c", self="%part", src="%x"),
        node("aten.neg.default", "y", self="%b_k"),
    ]
    order = [nodes[2], *nodes[:2]] if reads_before else nodes
    graph = read(_archive(tmp_path, order, {"k": np.zeros((8, 3), np.float32)}))
    states: dict[str, Any] = {}
    x, whole = _reals((2, 3)), np.zeros((8, 3), np.float32)
    whole[2:4] = x
    first, second = (evaluate(graph, {"x": value}, states)[graph.outputs[0]] for value in (x, 2 * x))
    assert np.array_equal(first, np.zeros((8, 3)) if reads_before else -whole)
    assert np.array_equal(second, -whole if reads_before else -2 * whole)


@pytest.mark.parametrize(("start", "end"), [(2, 4), (0, 2), (-2, None), (0, None), (3, 3), (9, 12)])
def test_a_slice_that_is_replaced(tmp_path: Path, start: int, end: int | None) -> None:
    call = {"dim": 0, "start": start, **({} if end is None else {"end": end})}
    nodes = [node("aten.slice.Tensor", "part", self="%x", **call), node("aten.neg.default", "n", self="%part")]
    nodes.append(node("aten.slice_scatter.default", "y", self="%x", src="%n", **call))
    x = _reals((6, 3))
    wanted = x.copy()
    wanted[start:end] = -wanted[start:end]
    assert np.array_equal(run(read(_archive(tmp_path, nodes, {}, inputs={"x": ("float32", (6, 3))})), x)[0], wanted)


@pytest.mark.parametrize("index", [0, 3, -1])
def test_a_row_that_is_replaced(tmp_path: Path, index: int) -> None:
    nodes = [node("aten.copy.default", "row", self="%b_k", src="%b_v")]
    nodes.append(node("aten.select_scatter.default", "y", self="%x", src="%row", dim=0, index=index))
    weights = {"k": np.zeros(3, np.float32), "v": np.array([7], np.int64)}
    x = _reals((6, 3))
    wanted = x.copy()
    wanted[index] = 7
    assert np.array_equal(run(read(_archive(tmp_path, nodes, weights, inputs={"x": ("float32", (6, 3))})), x)[0], wanted)


def test_a_number_among_the_inputs_is_what_the_program_was_exported_for(tmp_path: Path) -> None:
    document = program([node("aten.mul.Tensor", "y", self="%x", other=3)], _X, ["y"], {})
    document["graph_module"]["signature"]["input_specs"].append({"constant_input": {"name": "k", "value": {"as_int": 3}}})
    graph = read(write(tmp_path / "m.pt2", document, {}))
    assert graph.inputs == ("x",) and np.array_equal(run(graph, np.ones((2, 3), np.float32))[0], np.full((2, 3), 3))


def test_outputs_that_are_none_inputs_or_constants(tmp_path: Path) -> None:
    weights = {"w": np.ones(3, np.float32)}
    graph = read(write(tmp_path / "m.pt2", program([], _X, ["x", "", "b_w", "x"], weights), weights))
    x = _reals((2, 3))
    found = run(graph, x)
    assert len(found) == 3 and np.array_equal(found[0], x) and np.array_equal(found[1], weights["w"]) and np.array_equal(found[2], x)


def test_a_size_that_is_known_only_at_run_time(tmp_path: Path) -> None:
    nodes = [node("aten.sym_size.int", "n", self="%x", dim=0), node("aten.view.default", "y", self="%x", size=["@n", 1, -1])]
    nodes[0]["outputs"] = [{"as_sym_int": {"as_name": "n"}}]
    graph = read(_archive(tmp_path, nodes, {}, inputs={"x": ("float32", ("s7", 4))}))
    assert graph["x"].shape == ("s7", 4) and graph[graph.outputs[0]].rank == 3
    assert run(graph, _reals((5, 4)))[0].shape == (5, 1, 4)


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda d: d["schema_version"].update(major=9), ("version-not-covered", "9.20", 8)),
        (lambda d: d["schema_version"].update(major=1), ("version-not-covered", "1.20")),
        (lambda d: d.pop("graph_module"), ("damaged-program",)),
        (lambda d: d["graph_module"]["graph"].update(nodes={}), ("not-in-order",)),
        (lambda d: d["graph_module"]["graph"]["nodes"][0]["inputs"][0].update(arg=[]), ("damaged-program",)),
        (lambda d: d["graph_module"]["graph"]["nodes"][0].update(target="torch.ops.aten.cos_of.default"), ("operators-not-covered",)),
        (lambda d: d["graph_module"]["graph"].update(tensor_values={}), ("input-not-stated",)),
        (
            lambda d: d["graph_module"]["signature"]["input_specs"].append(d["graph_module"]["signature"]["input_specs"][0]),
            ("duplicate-name",),
        ),
        (lambda d: d["graph_module"]["signature"].update(input_specs=[]), ("not-in-order",)),
    ],
)
def test_a_damaged_program_is_one_error(tmp_path: Path, change: Any, broken: tuple[Any, ...]) -> None:
    weights = {"w": np.ones((4, 3), np.float32)}
    document = program([_linear("%b_w")], _X, ["y"], weights)
    change(document)
    with refused(QConvertError, broken[0], holds=broken[1:]):
        read(write(tmp_path / "m.pt2", document, weights))


def test_a_weight_that_is_missing(tmp_path: Path) -> None:
    document = program([_linear("%b_w")], _X, ["y"], {"w": np.ones((4, 3), np.float32)})
    with refused(InvalidModelError, "weights-missing", where="w"):
        read(write(tmp_path / "m.pt2", document, {}))


@pytest.mark.parametrize(("name", "data"), [("dropout", "input"), ("dropout_", "self"), ("feature_dropout_", "self")])
def test_dropout_outside_of_training_gives_its_data(tmp_path: Path, name: str, data: str) -> None:
    nodes = [node("aten.relu.default", "r", self="%x"), node(f"aten.{name}.default", "y", **{data: "%r", "p": 0.2, "train": False})]
    x = _reals((2, 3))
    assert np.array_equal(run(read(_archive(tmp_path, nodes, {})), x)[0], np.maximum(x, 0))
