"""Forms of files that PyTorch 2.13 loads and no longer writes, inputs that only scripts have: what is read gives what PyTorch gives."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert import check, convert, load
from qconvert.errors import InvalidModelError, OptionError, UnsupportedError
from qconvert.evaluate import evaluate
from qconvert.runtimes.onnx_rewrites import has_vnni
from tests.torchscript_models import Array, Instance, Quantized, Typed, archive

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
needs_vnni = pytest.mark.skipif(not has_vnni(), reason="kernels of fbgemm saturate on CPUs without VNNI, in orders of their own")

_CLASSES = "__torch__.torch.classes"
_CONV, _LINEAR = f"{_CLASSES}.quantized.Conv2dPackedParamsBase", f"{_CLASSES}.quantized.LinearPackedParamsBase"
_CELL = f"{_CLASSES}.rnn.CellParamsBase"
_RNG = np.random.default_rng(4711)
_X = (_RNG.normal(size=(2, 3, 6, 6)) * 3).astype(np.float32)
_ROWS = _RNG.normal(size=(5, 4)).astype(np.float32)


def _integers(*shape: int) -> Array:
    return _RNG.integers(-128, 128, shape).astype(np.int8)


def _reals(*shape: int) -> Array:
    return _RNG.normal(size=shape).astype(np.float32)


_KERNEL, _BIAS = Quantized(_integers(4, 3, 3, 3), [0.01, 0.02, 0.015, 0.03], [0] * 4, 0), _reals(4)


def _file(path: Path, body: str, kinds: str = "", given: Any = None, arguments: str = "x: Tensor", returned: str = "Tensor") -> Path:
    """An archive whose attributes have the types that `kinds` lists, without which PyTorch does not load it."""
    head = ["class Net(Module):", "  __parameters__ = []", "  __buffers__ = []", *(f"  {line}" for line in kinds.split("; ") if line)]
    lines = [f"    {line}" for line in body.split("; ")]
    code = "\n".join([*head, f"  def forward(self: __torch__.Net, {arguments}) -> {returned}:", *lines, ""])
    return archive(path, {"__torch__.py": code}, given)


def _arrays(value: Any) -> list[Array]:
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in _arrays(item)]
    return [np.asarray((value.int_repr() if value.is_quantized else value).detach())]


def _compare(path: Path, values: Sequence[Any], stated: str, tolerance: float = 0.0) -> None:
    """What PyTorch computes of a file is what the graph means."""
    wanted = _arrays(torch.jit.load(path)(*values))
    graph = load(path, input_shape=stated)
    flat = [array for value in values for array in _arrays(list(value.values()) if isinstance(value, dict) else value)]
    found = evaluate(graph, dict(zip(graph.inputs, flat, strict=True)))
    for name, expected in zip(graph.outputs, wanted, strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=tolerance)


def _of_version(version: int) -> tuple[Any, ...]:
    def single(values: Sequence[int]) -> Any:
        return Typed([np.array([value]) for value in values], "List[Tensor]")

    numbers = [2, 2, 1, 1, 0, 1, 2, 0, 0, 1, 0]
    if version == 1:
        return _KERNEL, _BIAS, single((2, 1)), single((1, 0)), single((1, 2)), np.array([1])
    if version == 2:
        return "2", Typed([np.array(numbers, np.int16), _KERNEL], "List[Tensor]"), Typed([_BIAS], "List[Optional[Tensor]]")
    return 3, Typed(numbers, "List[int]"), Typed([None, _KERNEL, _BIAS], "List[Optional[Tensor]]")


@needs_vnni
@pytest.mark.parametrize("name", ["conv2d", "conv2d_relu"])
@pytest.mark.parametrize(("version", "further"), [(1, ()), (1, (7,)), (2, ()), (2, (7,)), (3, ())])
def test_the_sizes_of_a_convolution_are_those_packed_with_its_weights(tmp_path: Path, version: int, further: Any, name: str) -> None:
    call = f"ops.quantized.{name}(q, self.p, [1, 1], [0, 0], [1, 1], 1, 0.4, 100)"
    body = f"q = torch.quantize_per_tensor(x, 0.05, 110, 13); return torch.int_repr({call})"
    path = _file(tmp_path / "m.pt", body, f"p : {_CONV}", {"p": Instance(_CONV, (*_of_version(version), *further))})
    _compare(path, [torch.from_numpy(_X)], "2,3,6,6")


def test_convolutions_of_three_axes_have_the_old_signature_too(tmp_path: Path) -> None:
    kind, kernel = f"{_CLASSES}.quantized.Conv3dPackedParamsBase", Quantized(_integers(2, 3, 1, 3, 3), 0.02)
    numbers = np.array([3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0], np.int16)
    state = "2", Typed([numbers, kernel], "List[Tensor]"), Typed([None], "List[Optional[Tensor]]")
    sizes = "[1, 1, 1], [0, 1, 1], [1, 1, 1], 1"
    body = f"q = torch.quantize_per_tensor(x, 0.05, 0, 13); return torch.int_repr(ops.quantized.conv3d(q, self.p, {sizes}, 0.4, 100))"
    path = _file(tmp_path / "m.pt", body, f"p : {kind}", {"p": Instance(kind, state)})
    _compare(path, [torch.from_numpy(_X[:, :, None])], "2,3,1,6,6")


def _cell_state(form: str, rows: int) -> tuple[Any, ...]:
    weights, biases = [_integers(rows, 4), _integers(rows, 3)], [_reals(rows), _reals(rows)]
    if form == "quantized":
        points = (-19, 18)
        sums = [(w.astype(np.int32).sum(1) - point * w.shape[1]).astype(np.int32) for w, point in zip(weights, points, strict=True)]
        return form, [*weights, *biases, *sums], [0.02, 0.015], list(points), []
    kind = "quantized_fp16" if form == "fp16" else "quantized_dynamic"
    stored: list[Any] = [_reals(*w.shape) if form == "fp16" else Quantized(w, 0.01) for w in weights]
    packed = [Instance(_LINEAR, (w, None if form == "no_bias" else b)) for w, b in zip(stored, biases, strict=True)]
    flags = {"reduced": [1], "not_reduced": [0]}.get(form, [])
    return kind, [] if form == "fp16" else biases, [], flags, packed


_LAYERS = {
    "lstm": (12, "y, a, c = torch.quantized_lstm(x, [h, h], [p], True, 1, 0., False, False, False, dtype=12, use_dynamic=True)"),
    "gru": (9, "y, a = torch.quantized_gru(x, h, [p], True, 1, 0., False, False, False)"),
}


@needs_vnni
@pytest.mark.parametrize("layer", ["lstm", "gru"])
@pytest.mark.parametrize("form", ["reduced", "not_reduced", "before_1.7", "no_bias", "fp16", "quantized"])
def test_every_state_of_a_recurrent_cell_is_read(tmp_path: Path, form: str, layer: str) -> None:
    rows, call = _LAYERS[layer]
    body = f"p = self.p; h = torch.ones([1, 2, 3]); {call}; return (y, a)"
    state = Instance(_CELL, _cell_state(form, rows))
    path = _file(tmp_path / "m.pt", body, f"p : {_CELL}", {"p": state}, returned="Tuple[Tensor, Tensor]")
    _compare(path, [torch.from_numpy(_reals(6, 2, 4))], "6,2,4", 1e-6)


@pytest.mark.parametrize("state", [("quantized_dynamic", [], [], []), ("quantized_dynamic", [], [], [], [], 1)])
def test_a_state_that_pytorch_does_not_load_is_named(tmp_path: Path, state: Any) -> None:
    path = _file(tmp_path / "m.pt", "p = self.p; return x", f"p : {_CELL}", {"p": Instance(_CELL, state)})
    with pytest.raises(RuntimeError):
        torch.jit.load(path)
    with refused(InvalidModelError, "damaged-tensor", holds=("CellParamsBase", "2.13")):
        load(path, input_shape="2,3")


_PACKED = {"half": "ops.quantized.linear_prepack_fp16(self.w, self.b)", "int8": "ops.quantized.linear_prepack(self.q, self.b)"}


@needs_vnni
@pytest.mark.parametrize("packed", ["half", "int8"])
@pytest.mark.parametrize("name", ["linear_dynamic", "linear_dynamic_fp16"])
def test_packed_weights_choose_the_kernel_of_a_dynamic_layer(tmp_path: Path, packed: str, name: str) -> None:
    weights = _reals(3, 4)
    weights[0] = [7e4, -1e9, 3e-8, 1.0005]  # float16 has none of these
    given = {"w": weights, "q": Quantized(_integers(3, 4), 0.02), "b": _reals(3)}
    unpacked = f"ops.quantized.linear_unpack{'_fp16' if packed == 'half' else ''}(p)"
    body = f"p = {_PACKED[packed]}; u, v = {unpacked}; return (ops.quantized.{name}(x, p), torch.dequantize(u))"
    path = _file(tmp_path / "m.pt", body, "w : Tensor; q : Tensor; b : Tensor", given, returned="Tuple[Tensor, Tensor]")
    rows = _ROWS.copy()
    rows[:, 1] = 0  # one product of 65,504 leaves the others their digits
    rows[:, 0] = np.arange(5) / 8
    _compare(path, [torch.from_numpy(rows)], "5,4", 1e-2 if packed == "half" else 1e-5)


def test_weights_that_the_call_rounds_to_float16_are_read(tmp_path: Path) -> None:
    given = {"w": _reals(3, 4), "b": _reals(3)}
    body = "return ops.quantized.linear_dynamic_fp16_unpacked_weight(x, self.w, self.b)"
    _compare(_file(tmp_path / "m.pt", body, "w : Tensor; b : Tensor", given), [torch.from_numpy(_ROWS)], "5,4", 1e-6)


def test_cells_that_code_packs_are_those_of_a_state(tmp_path: Path) -> None:
    given = {"w": Quantized(_integers(12, 4), 0.01), "u": Quantized(_integers(12, 3), 0.01), "b": _reals(12)}
    make = "ops.quantized.make_quantized_cell_params_dynamic(d, g, self.b, self.b, True)"
    packs = "d = ops.quantized.linear_prepack(self.w, self.b); g = ops.quantized.linear_prepack(self.u, self.b)"
    body = f"{packs}; p = {make}; h = torch.zeros([1, 2, 3]); {_LAYERS['lstm'][1]}; return y"
    path = _file(tmp_path / "m.pt", body, "w : Tensor; u : Tensor; b : Tensor", given)
    _compare(path, [torch.from_numpy(_reals(6, 2, 4))], "6,2,4", 1e-6)


def test_quantized_tensors_along_an_axis_are_made_as_pytorch_makes_them(tmp_path: Path) -> None:
    given = {"w": _reals(3, 5000), "s": np.array([0.013, 0.02, 0.007], np.float32).astype(np.float64), "z": np.array([3, 0, -5])}
    body = "return torch.add(torch.dequantize(torch.quantize_per_channel(self.w, self.s, self.z, 0, 12)), x)"
    _compare(_file(tmp_path / "m.pt", body, "w : Tensor; s : Tensor; z : Tensor", given), [torch.zeros(3, 5000)], "3,5000")


@needs_vnni
def test_operators_have_second_names(tmp_path: Path) -> None:
    call = "ops._quantized.conv2d(q, p, 0.4, 100)"
    pack = "p = ops._quantized.conv2d_prepack(self.w, self.b, [1, 1], [0, 0], [1, 1], 1)"
    body = f"{pack}; q = torch.quantize_per_tensor(x, 0.05, 110, 13); return torch.int_repr(ops._quantized.add({call}, {call}, 0.7, 3))"
    path = _file(tmp_path / "m.pt", body, "w : Tensor; b : Tensor", {"w": _KERNEL, "b": _BIAS})
    _compare(path, [torch.from_numpy(_X)], "2,3,6,6")


def _rewritten(path: Path, entry: str, change: Any) -> Path:
    with zipfile.ZipFile(path) as read:
        entries = {name: read.read(name) for name in read.namelist()}
    entries[entry] = change(entries[entry])
    with zipfile.ZipFile(path, "w") as written:
        for name, content in entries.items():
            written.writestr(name, content)
    return path


def test_tuples_in_pickles_may_be_longer(tmp_path: Path) -> None:
    weight = Quantized(_integers(4, 4), 0.02, 3)

    def longer(content: bytes) -> bytes:
        content, count = re.subn(rb"(torch\nper_tensor_affine\nG.{8}J.{4})t", rb"\1Nt", content, flags=re.DOTALL)
        assert count == 1 and content.count(b"tQ") == 1
        return content.replace(b"tQ", b"NtQ")

    path = _file(tmp_path / "m.pt", "return torch.add(torch.dequantize(self.w), x)", "w : Tensor", {"w": weight})
    _compare(_rewritten(path, "net/data.pkl", longer), [torch.zeros(4, 4)], "4,4")


@pytest.mark.cross_section
@pytest.mark.parametrize("size", [0, 3, 5, 8, 11])
def test_a_storage_of_another_size_than_stated_is_refused(tmp_path: Path, size: int) -> None:
    path = _file(tmp_path / "m.pt", "return torch.add(self.w, x)", "w : Tensor", {"w": np.ones(1, np.float32)})
    load(path, input_shape="4")
    with refused(InvalidModelError, "damaged-pickle", holds=(size, 1, 4)):
        load(_rewritten(path, "net/data/0", lambda _: bytes(size)), input_shape="4")


_TAKES = "p = self.p; return torch.int_repr(ops.quantized.conv2d(x, p, 0.4, 100))"


@needs_vnni
@pytest.mark.parametrize(("kind", "dtype", "zero_point"), [("quint8", "uint8", 110), ("qint8", "int8", -3)])
def test_an_input_has_the_scale_that_the_user_states(tmp_path: Path, kind: str, dtype: str, zero_point: int) -> None:
    if kind == "qint8":
        body, given = "return torch.int_repr(ops.quantized.add(x, x, 0.07, 5))", {}
    else:
        body, given = _TAKES, {"p": Instance(_CONV, _of_version(2))}
    path = _file(tmp_path / "m.pt", body, f"p : {_CONV}" if given else "", given)
    with refused(UnsupportedError, "not-quantized") as caught:
        load(path, input_shape="2,3,6,6")
    assert "--input-shape 'x=2,3,6,6:quint8(0.02,128)'" in caught.value.remedy
    stated = f"x=2,3,6,6:{kind}(0.05,{zero_point})"
    x = torch.quantize_per_tensor(torch.from_numpy(_X), 0.05, zero_point, getattr(torch, kind))
    _compare(path, [x], stated)
    tensor = load(path, input_shape=stated)["x"]
    assert tensor.dtype == dtype and tensor.quantization is not None
    assert (tensor.quantization.step, tensor.quantization.point) == (np.float32(0.05), zero_point)


@pytest.mark.parametrize(
    "kind",
    [
        "foo",
        "quint8(0,3)",
        "quint8(0.1,256)",
        "quint8(nan,3)",
        "quint8(1e-60,3)",
        "quint8(1e300,3)",
        "qint8(0.1,-129)",
        "float32(1,0)",
        "quint8(1)",
    ],
)
def test_a_type_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(OptionError):
        load(_file(tmp_path / "m.pt", "return x"), input_shape=f"x=2:{kind}")


@pytest.mark.onnxruntime
def test_the_trace_says_the_scale_of_a_quantized_input(tmp_path: Path) -> None:
    class Takes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized.add(x, x, 0.07, 5)

    x = torch.quantize_per_tensor(torch.from_numpy(_X), 0.05, 110, torch.quint8)
    torch.jit.save(torch.jit.trace(Takes(), x), tmp_path / "m.pt")
    _compare(tmp_path / "m.pt", [x], "")
    convert(tmp_path / "m.pt", tmp_path / "m.onnx")
    for kernels in ("", "torch:trusted"):
        assert check(tmp_path / "m.pt", tmp_path / "m.onnx", kernels=kernels).passed


def test_an_example_that_is_no_tensor_is_none(tmp_path: Path) -> None:
    path = _file(tmp_path / "m.pt", "return torch.neg(x)")
    names_a_function = b"\x80\x02}(X\x07\x00\x00\x00forward](ctorch._utils\n_rebuild_tensor_v2\neu."
    with zipfile.ZipFile(path, "a") as added:
        added.writestr("net/traced_inputs.pkl", names_a_function)
    assert load(path, input_shape="3,4")["x"].shape == (3, 4)


class _Several(nn.Module):
    def forward(self, xs: list[torch.Tensor], named: dict[str, torch.Tensor], factor: int = 2) -> torch.Tensor:
        total = named["a"] - named["b"]
        for index, x in enumerate(xs):
            total = total + x * (index + factor)
        return total


@pytest.mark.onnxruntime
def test_lists_and_dictionaries_of_tensors_are_as_many_as_the_user_states(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.jit.save(torch.jit.script(_Several()), path)
    with pytest.raises(OptionError) as caught:
        load(path)
    assert "--input-shape 'xs_0=1,3,224,224; xs_1=1,3,224,224'" in caught.value.remedy
    stated = "xs_0=5,4; xs_1=5,4; xs_2=5,4; named_a=5,4; named_b=5,4"
    x = torch.from_numpy(_ROWS)
    _compare(path, [[x, x + 1, -x], {"a": 2 * x, "b": x - 3}], stated, 1e-6)
    convert(path, tmp_path / "m.onnx", input_shape=stated)
    assert check(path, tmp_path / "m.onnx", kernels="torch:trusted").passed
    with pytest.raises(OptionError):
        load(path, input_shape="xs_0=5,4; xs_2=5,4; named_a=5,4; named_b=5,4")


def test_an_archive_of_before_1_4_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as found:
        found.writestr("m/version", "1\n")
        found.writestr("m/model.json", "{}")
        found.writestr("m/code/m.py", "op_version_set = 0\n")
    with refused(UnsupportedError, "version-not-covered", holds=("1.4",)):
        load(tmp_path / "m.pt")
