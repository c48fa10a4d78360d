"""state_dicts next to graphs: the committed ones, and those that contradict the graph, or themselves. No test here needs PyTorch."""

from __future__ import annotations

import json
import random
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from torch_states import classifier_state, computed, equal_layers, layers, state_file
from torchscript_models import Quantized

import qconvert
from qconvert.errors import InvalidModelError, OptionError, QConvertError, UnsupportedError
from qconvert.rules.differences import diff

pytestmark = pytest.mark.formats

FOLDER = Path(__file__).parents[2] / "fixtures" / "torch"
CLASSIFIER = FOLDER / "classifier"
GRAPHS = [CLASSIFIER / "float.onnx", CLASSIFIER / "float.pt2"]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: path.suffix)
@pytest.mark.parametrize("name", ["state_eager_fbgemm", "state_fx_qnnpack"])
def test_a_state_has_its_integers_and_outputs(name: str, graph: Path) -> None:
    """As PyTorch's accessors and the module itself gave them."""
    found = qconvert.load(CLASSIFIER / f"{name}.pth", graph=graph)
    values = np.load(CLASSIFIER / f"{name}.npz")
    prefix = "module." if "eager" in name else ""
    for (_, data, quantization, bias, _, before, *_), module in zip(layers(found), ("first", "second", "output"), strict=True):
        assert np.array_equal(data, values[f"param/{prefix}{module}/weight"])
        real = values[f"param/{prefix}{module}/bias"]
        steps = real if "fbgemm" in name else np.rint(real / (before.scale.astype(np.float64) * quantization.scale))  # qnnpack rounds it
        assert np.array_equal(bias, steps)
        assert np.array_equal(quantization.scale, np.atleast_1d(values[f"param/{prefix}{module}/scale"]).astype(np.float32))
    assert np.array_equal(computed(found, values), values["output_0"])
    assert found.is_from("torch") and found.metadata["source.kernels"] == ("torch:x86" if "fbgemm" in name else "torch:qnnpack")


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: path.suffix)
def test_a_state_is_what_the_torchscript_of_its_network_is(graph: Path) -> None:
    script = qconvert.load(CLASSIFIER / "eager_fbgemm_traced.pt")
    assert equal_layers(qconvert.load(CLASSIFIER / "state_eager_fbgemm.pth", graph=graph), script)


def test_the_graph_of_another_network_is_refused() -> None:
    with refused(InvalidModelError, "constants-unmatched"):
        qconvert.load(CLASSIFIER / "state_eager_fbgemm.pth", graph=FOLDER / "single" / "reference_fbgemm.pt2")


@pytest.mark.parametrize("prefix", ["", "module.", "net.backbone.body."])
def test_a_prefix_that_the_graph_lacks_is_taken_off(tmp_path: Path, prefix: str) -> None:
    path = state_file(tmp_path / "a.pth", classifier_state(prefix))
    found = qconvert.load(path, graph=GRAPHS[0])
    plain = qconvert.load(state_file(tmp_path / "b.pth", classifier_state()), graph=GRAPHS[0])
    assert equal_layers(found, plain) and diff(found, plain) == []


def test_a_state_in_a_checkpoint_is_found(tmp_path: Path) -> None:
    path = state_file(tmp_path / "a.pth", {"epoch": 3, "optimizer": {"lr": 0.1}, "state_dict": classifier_state()})
    assert len(layers(qconvert.load(path, graph=GRAPHS[0]))) == 3


def test_a_layer_behind_which_a_relu_stands_has_the_quantization_of_both(tmp_path: Path) -> None:
    """A quantization whose lowest integer is 0 was observed after the Relu that was fused; any other stands before it."""
    fused = qconvert.load(state_file(tmp_path / "a.pth", classifier_state()), graph=GRAPHS[0])
    state = classifier_state() | {"first.zero_point": np.array(7)}
    apart = qconvert.load(state_file(tmp_path / "b.pth", state), graph=GRAPHS[0])
    values = {"input_0": np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)}
    middle = [next(op for op in graph.ops if op.kind == "Conv").outputs[0] for graph in (fused, apart)]
    low = [computed(graph.evolve(outputs=(name,)), values).min() for graph, name in zip((fused, apart), middle, strict=True)]
    assert low == [0, 7]


def test_activations_with_a_negative_zero_point_are_int8(tmp_path: Path) -> None:
    state = classifier_state() | {"second.zero_point": np.array(-5)}
    found = qconvert.load(state_file(tmp_path / "a.pth", state), graph=GRAPHS[0])
    assert {item[4] for item in layers(found)} == {item[6] for item in layers(found)} == {"int8"}


def test_torch_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = qconvert.convert(CLASSIFIER / "state_eager_fbgemm.pth", tmp_path / "a.onnx", graph=GRAPHS[1])
    assert report.kept_all and report.kept["integers in them"] == 268


@pytest.mark.onnxruntime
@pytest.mark.torch
@pytest.mark.cross_section
def test_what_is_written_says_which_graph_it_was_made_with(tmp_path: Path) -> None:
    result = tmp_path / "a.onnx"
    report = qconvert.convert(CLASSIFIER / "state_eager_fbgemm.pth", result, graph=GRAPHS[0])
    assert report.provenance["qconvert.graph"] == "float.onnx" and len(report.provenance["qconvert.graph_sha256"]) == 64
    assert str(GRAPHS[0].parent) not in json.dumps(dict(report.provenance))
    checked = qconvert.check(CLASSIFIER / "state_eager_fbgemm.pth", result, graph=GRAPHS[0], samples=2)
    assert not checked.problems
    other = qconvert.check(CLASSIFIER / "state_eager_fbgemm.pth", result, graph=GRAPHS[1], samples=2)
    assert any("another graph" in note for note in other.notes)


def test_the_graph_is_not_overwritten(tmp_path: Path) -> None:
    graph = tmp_path / "float.onnx"
    graph.write_bytes(GRAPHS[0].read_bytes())
    with refused(OptionError, "source-overwritten"):
        qconvert.convert(CLASSIFIER / "state_eager_fbgemm.pth", graph, graph=graph, force=True)
    assert graph.read_bytes() == GRAPHS[0].read_bytes()


def test_without_a_graph_the_error_says_how_to_write_one() -> None:
    with refused(UnsupportedError, "graph-missing", holds=("state_dict",)) as caught:
        qconvert.load(CLASSIFIER / "state_eager_fbgemm.pth")
    assert "--graph float.pt2" in caught.value.remedy and "torch.export.save" in caught.value.remedy
    with refused(UnsupportedError, "graph-missing"):
        qconvert.load(FOLDER / "perceptron" / "torchao_safe_int8_weight.safetensors")


def test_a_graph_beside_a_graph_is_refused() -> None:
    with refused(OptionError, "option-not-applicable"):
        qconvert.load(CLASSIFIER / "eager_fbgemm_traced.pt", graph=GRAPHS[0])
    with refused(OptionError, "option-not-applicable"):
        qconvert.load(CLASSIFIER / "eager_fbgemm_traced.pt", oneflow="google")
    with refused(OptionError, "unknown-option", holds=("graph",)):
        qconvert.load(GRAPHS[0], graph=GRAPHS[1])


def _without(state: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in names}


_WRONG = {
    "another shape": (
        lambda state: state | {"first.weight": Quantized(np.zeros((4, 3, 5, 5), np.int8), 0.1)},
        "shape-mismatch",
        ("'first.weight'", "(4, 3, 5, 5)", "(4, 3, 3, 3)"),
    ),
    "another bias": (lambda state: state | {"first.bias": np.zeros(7, np.float32)}, "shape-mismatch", ("(7,)", "(4,)")),
    "a name more": (
        lambda state: state | {"frist.weight": Quantized(np.zeros((4, 3, 3, 3), np.int8), 0.1)},
        "constants-unmatched",
        (1, "'frist.weight' (nearest: 'first.weight')"),
    ),
    "a name less": (lambda state: _without(state, "second.weight"), "constants-unmatched", (1, "'second.weight'")),
    "a bias less": (lambda state: _without(state, "second.bias"), "constants-unmatched", ("'second.bias'",)),
    "no data's quantization": (
        lambda state: _without(state, "quant.scale", "quant.zero_point"),
        "data-without-scale",
        ("'first'", "'x'"),
    ),
    "no sum's quantization": (lambda state: _without(state, "add.scale", "add.zero_point"), "data-without-scale", ("'output'",)),
    "a quantization more": (
        lambda state: state | {"other.scale": np.array(0.3, np.float32), "other.zero_point": np.array(3)},
        "module-ambiguous",
        (2, "'add': one of 'add'"),
    ),
    "two stubs": (
        lambda state: state | {"quant2.scale": np.array([0.3], np.float32), "quant2.zero_point": np.array([3])},
        "input-count",
        (2, "'quant2'"),
    ),
    "a negative scale": (
        lambda state: state | {"first.scale": np.array(-1, np.float32)},
        "quantization-outside-type",
        ("-1.0", 0, "uint8"),
    ),
    "no number": (lambda state: state | {"add.scale": np.array(np.nan, np.float32)}, "quantization-outside-type", ("nan", 62)),
    "a zero point outside": (lambda state: state | {"add.zero_point": np.array(256)}, "quantization-outside-type", (256, "uint8")),
    "zero points of both signs": (
        lambda state: state | {"add.zero_point": np.array(-3), "second.zero_point": np.array(200)},
        "contradicting-zero-points",
        (),
    ),
    "many scales": (lambda state: state | {"add.scale": np.ones(9, np.float32)}, "not-per-tensor", (9, 1)),
    "a scale that is a text": (lambda state: state | {"add.scale": "wide"}, "wrong-type", ("str",)),
    "packed parameters of one": (
        lambda state: state | {"output._packed_params._packed_params": (np.zeros(3, np.float32),)},
        "malformed-packed",
        (),
    ),
    "a weight's scale": (
        lambda state: state | {"first.weight": Quantized(np.zeros((4, 3, 3, 3), np.int8), np.array([1, 0, 1, 1.0]), 0, 0)},
        "scale-not-positive",
        (),
    ),
}


@pytest.mark.parametrize("case", _WRONG)
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda path: path.suffix)
def test_what_does_not_fit_is_named(tmp_path: Path, graph: Path, case: str) -> None:
    change, rule, named = _WRONG[case]
    path = state_file(tmp_path / "a.pth", change(classifier_state()))
    with refused(InvalidModelError, rule, holds=named):
        qconvert.load(path, graph=graph)


def test_a_module_can_be_named_by_the_user(tmp_path: Path) -> None:
    """Two FloatFunctionals of which one computes: which of them no file says."""
    state = classifier_state() | {"other.scale": np.array(0.3, np.float32), "other.zero_point": np.array(3)}
    path = state_file(tmp_path / "a.pth", state)
    stated = qconvert.load(path, graph=GRAPHS[0], modules="add = add; other = relu")
    quantizations = [stated[op.outputs[0]].quantization for op in stated.ops if op.kind == "Add"]
    assert quantizations[0].scale.tolist() == [np.float32(0.04)]
    with refused(OptionError, "unknown-tensor", holds=("'ad'", "'add'")):
        qconvert.load(path, graph=GRAPHS[0], modules="add=ad")
    with refused(OptionError, "malformed-option"):
        qconvert.load(path, graph=GRAPHS[0], modules="add")


def test_a_functional_that_never_computed_is_left_out(tmp_path: Path) -> None:
    state = classifier_state() | {"mul.scale": np.array(1.0, np.float32), "mul.zero_point": np.array(0)}
    assert len(layers(qconvert.load(state_file(tmp_path / "a.pth", state), graph=GRAPHS[0]))) == 3


@pytest.mark.parametrize(
    "extra",
    [
        {f"a.{'a.' * (index % 300)}{index}.scale": np.array(0.5, np.float32) for index in range(1500)}
        | {f"a.{'a.' * (index % 300)}{index}.zero_point": np.array(1) for index in range(1500)},
        {f"first.{index}.weight": np.zeros(1, np.float32) for index in range(4000)},
        {f"_scale_{index}": np.array(0.5 + index, np.float32) for index in range(2000)}
        | {f"_zero_point_{index}": np.array(1) for index in range(2000)},
        {".": np.zeros(1, np.float32), "": np.zeros(1, np.float32), "..weight": np.zeros((4, 3, 3, 3), np.float32)},
        {"add.add.add.scale": np.array(0.1, np.float32), "add.add.add.zero_point": np.array(3), "add.add.weight": np.zeros((), np.float32)},
    ],
    ids=["deep", "many", "listed", "dots", "within itself"],
)
def test_strange_names_end_in_one_error(tmp_path: Path, extra: dict[str, Any]) -> None:
    path = state_file(tmp_path / "a.pth", classifier_state() | extra)
    with pytest.raises(InvalidModelError) as caught:
        qconvert.load(path, graph=GRAPHS[0])
    assert len(str(caught.value)) < 4000


@pytest.mark.parametrize("file", ["classifier/state_eager_fbgemm.pth", "classifier/state_fx_qnnpack.pth", "small/qat_fbgemm_state.pth"])
def test_mutated_states_end_in_errors(tmp_path: Path, file: str) -> None:
    """Bytes of the pickle are others; what is read then is a graph, or refused in one message."""
    rng, path = random.Random(0), tmp_path / "a.pth"
    with zipfile.ZipFile(FOLDER / file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    (pickled,) = [name for name in entries if name.endswith("/data.pkl")]
    read = 0
    for _ in range(120):
        content = bytearray(entries[pickled])
        for _ in range(rng.choice((1, 1, 2, 4))):
            content[rng.randrange(len(content))] = rng.randrange(256)
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in entries.items():
                archive.writestr(name, bytes(content) if name == pickled else data)
        try:
            read += bool(qconvert.load(path, graph=GRAPHS[0]).ops)
        except QConvertError as error:
            assert len(str(error)) < 6000
    assert read < 120


def test_nothing_is_written_under_the_name_of_tensors(tmp_path: Path) -> None:
    with refused(OptionError, "wrong-suffix"):
        qconvert.convert(GRAPHS[0], tmp_path / "a.safetensors")


@pytest.mark.parametrize("content", [b"", b"\x10\0\0\0\0\0\0\0{", b"\xff\xff\xff\xff\xff\xff\xff\xff{}", b"\x02\0\0\0\0\0\0\0{}"])
def test_damaged_safetensors_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(QConvertError):
        qconvert.load(path, graph=GRAPHS[0])


def _safe(path: Path, header: dict[str, Any], data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        {"dtype": "Q9", "shape": [2], "data_offsets": [0, 8]},
        7,
    ],
)
def test_tensors_of_safetensors_lie_within_the_file(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(QConvertError):
        qconvert.load(_safe(tmp_path / "a.safetensors", {"first.weight": entry}, bytes(8)), graph=GRAPHS[0])


@pytest.mark.parametrize(
    "said",
    [
        {"_type": "Int8Tensor", "_data": {"block_size": [1, 0]}, "_tensor_data_names": ["qdata", "scale"]},
        {"_type": "Int8Tensor", "_data": {"block_size": [1, 3]}, "_tensor_data_names": ["qdata", "scale"]},
        {"_type": "Int8Tensor", "_data": {"block_size": 4}, "_tensor_data_names": ["qdata", "scale"]},
        {"_type": "Int8Tensor", "_data": {}, "_tensor_data_names": ["qdata", "scale"]},
        {"_type": "Int8Tensor", "_data": {"block_size": [1, 4]}, "_tensor_data_names": ["nothing"]},
        {"_type": "Other", "_data": {"block_size": [1, 4]}, "_tensor_data_names": ["qdata", "scale"]},
        {"_type": "Int8Tensor"},
    ],
)
def test_parts_of_torchao_have_to_fit(tmp_path: Path, said: dict[str, Any]) -> None:
    header = {
        "__metadata__": {"output.weight": json.dumps(said)},
        "output._weight_qdata": {"dtype": "I8", "shape": [4, 4], "data_offsets": [0, 16]},
        "output._weight_scale": {"dtype": "F32", "shape": [4, 1], "data_offsets": [16, 32]},
    }
    with pytest.raises(QConvertError):
        qconvert.load(_safe(tmp_path / "a.safetensors", header, bytes(32)), graph=GRAPHS[0])
