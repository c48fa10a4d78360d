"""TorchScript's code is followed without running: what statements, calls, objects and lists mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import InvalidGraphError, InvalidModelError, OptionError, QConvertError, UnsupportedError
from tests.torchscript_models import Instance, Quantized, archive, computed, graph_of, net, packed_conv, packed_linear, values_of

pytestmark = pytest.mark.formats

X = np.array([[1.0, -2.0], [3.0, -4.0]], np.float32)


def _weights(outputs: int = 2, inputs: int = 3, size: int = 1) -> Quantized:
    return Quantized(np.arange(outputs * inputs * size * size, dtype=np.int8).reshape(outputs, inputs, size, size), 0.5)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("l = annotate(List[Tensor], []); _0 = torch.append(l, x); torch.extend(l, [torch.neg(x)]); return l[1]", -X),
        ("if torch.ne(torch.len(torch.size(x)), 2):\n ops.prim.RaiseException(\"rank\")\nelse:\n pass\nreturn torch.neg(x)", -X),
        ("if torch.eq(torch.size(x, 0), 2):\n y = torch.neg(x)\nelse:\n y = x\nreturn y", -X),
        ("for i in range(3):\n x = torch.neg(x)\nreturn x", -X),
        ("for i in range(9):\n if torch.eq(i, 1):\n  break\n else:\n  x = torch.neg(x)\nreturn x", -X),
        ("i = 0\nwhile torch.lt(i, 5):\n i = torch.add(i, 1)\n x = torch.neg(x)\nreturn x", -X),
        ("a, b, = (x, torch.neg(x)); return b", -X),
        ("d = {\"k\": torch.neg(x)}; return d[\"k\"]", -X),
        ("y = torch.relu_(x); return x", np.maximum(X, 0)),
        ("y = torch.neg(x); z = torch.clone(y); _0 = torch.relu_(y); return z", -X),
        ("y = torch.neg(x); z = torch.contiguous(y); _0 = torch.relu_(z); return y", np.maximum(-X, 0)),
        ("b = torch.__isnot__(None, None)\nif b:\n y = x\nelse:\n y = torch.neg(x)\nreturn y", -X),
        ("y = unchecked_cast(Tensor, x); return torch.neg(annotate(Tensor, y))", -X),
        ("n = torch.mul(torch.size(x, 1), 2); return torch.reshape(x, [int(float(n))])", X.reshape(4)),
        ("f = ops.prim.dtype(x)\nif torch.eq(f, 6):\n y = torch.neg(x)\nelse:\n y = x\nreturn y", -X),
        ("with torch.no_grad():\n y = torch.neg(x)\nreturn y", -X),
        ("assert torch.gt(torch.len(torch.size(x)), 1)\nreturn torch.neg(x)", -X),
        ("t = torch.format(\"{} of {}\", 1, 2)\nif torch.eq(t, \"1 of 2\"):\n y = torch.neg(x)\nelse:\n y = x\nreturn y", -X),
    ],
)  # fmt: skip
def test_statements_mean_what_torch_means_by_them(tmp_path: Path, body: str, expected: Any) -> None:
    lines = body if "\n" in body else body.replace("; ", "\n")
    text = "class Net(Module):\n  def forward(self: __torch__.Net, x: Tensor) -> Tensor:\n" + "".join(
        f"    {line}\n" for line in lines.split("\n")
    )
    path = archive(tmp_path / "a.pt", {"__torch__.py": text}, traced=[("float32", X.shape)])
    (found,) = values_of(graph_of(path), X)
    assert np.array_equal(found, expected)


def test_functions_and_classes_of_the_file_are_values(tmp_path: Path) -> None:
    code = """
def twice(x: Tensor, again: bool=True) -> Tensor:
  y = torch.neg(x)
  return y
class Pair(NamedTuple):
  first : Tensor
  second : Tensor
class Net(Module):
  count : Final[int] = 3
  def forward(self: __torch__.Net, x: Tensor) -> Tensor:
    _0 = __torch__.twice
    _1 = __torch__.Pair
    p = _1(x, _0(x, ), )
    if torch.eq(self.count, 3):
      y = p.second
    else:
      y = p.first
    return y
"""
    path = archive(tmp_path / "a.pt", {"__torch__.py": code}, traced=[("float32", X.shape)])
    assert np.array_equal(values_of(graph_of(path), X)[0], -X)


def test_what_is_returned_in_tuples_lists_and_dictionaries_are_outputs(tmp_path: Path) -> None:
    found = computed(tmp_path / "a.pt", 'return (x, [torch.neg(x)], {"k": torch.relu(x)}, None, (torch.relu(torch.neg(x)),))', X)
    assert all(np.array_equal(a, b) for a, b in zip(found, [X, -X, np.maximum(X, 0), np.maximum(-X, 0)], strict=True))


def test_several_inputs_may_be_in_lists_and_left_out(tmp_path: Path) -> None:
    body = "a, b, = y\nif torch.__is__(z, None):\n  r = torch.neg(a)\nelse:\n  r = b\nreturn r"
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    head = "x: Tensor, y: Tuple[Tensor, Tensor], n: int=3, z: Optional[Tensor]=None"
    path = archive(
        tmp_path / "a.pt", {"__torch__.py": f"class Net(Module):\n  def forward(self: __torch__.Net, {head}) -> Tensor:\n{lines}"}
    )
    graph = graph_of(path, "2,2; 2,2; 2,2")
    assert graph.inputs == ("x", "y_0", "y_1") and np.array_equal(values_of(graph, X, X, X)[0], -X)


def test_an_integer_input_has_the_type_of_the_trace(tmp_path: Path) -> None:
    graph = graph_of(archive(tmp_path / "a.pt", net("return x"), traced=[("int64", (2, 6))]))
    assert graph["x"].dtype == "int64" and graph["x"].shape == (2, 6)


_SETSTATE = """
class Conv2d(Module):
  stride : Tuple[int, int]
  _packed_params : __torch__.torch.classes.quantized.Conv2dPackedParamsBase
  def forward(self: __torch__.torch.nn.quantized.modules.conv.Conv2d, input: Tensor) -> Tensor:
    _0 = ops.quantized.conv2d(input, self._packed_params, self.scale, self.zero_point)
    return _0
  def __setstate__(self: __torch__.torch.nn.quantized.modules.conv.Conv2d, state: Tuple[int, int]) -> NoneType:
    self.stride = (state)[0]
    self.scale = (state)[3]
    self.zero_point = (state)[4]
    _7 = (self).set_weight_bias((state)[1], (state)[2], )
    return None
  def _weight_bias(self: __torch__.torch.nn.quantized.modules.conv.Conv2d) -> Tuple[Tensor, Optional[Tensor]]:
    return (self._packed_params).unpack()
  def set_weight_bias(self: __torch__.torch.nn.quantized.modules.conv.Conv2d, w: Tensor, b: Optional[Tensor]) -> NoneType:
    _8, _9, = self.stride
    _16 = ops.quantized.conv2d_prepack(w, b, [_8, _9], [0, 0], [1, 1], 1)
    self._packed_params = _16
    w0, b0, = (self)._weight_bias()
    _17 = ops.quantized.conv2d_prepack(w0, b0, ops.quantized.conv2d_stride(_16), [0, 0], [1, 1], 1)
    self._packed_params = _17
    return None
"""


@pytest.mark.parametrize("form", ["packed", "setstate"])
def test_weights_are_packed_by_the_file_or_by_its_code(tmp_path: Path, form: str) -> None:
    weight, bias = _weights(), np.array([1.0, -1.0], np.float32)
    path = "net.first"
    if form == "packed":
        files = {
            "__torch__.py": net(
                'q = torch.quantize_per_tensor(x, 0.5, 3, 13)\nc = getattr(self, "hoisted.first")\nreturn ops.quantized.conv2d(q, c, 2., 1)'
            )
        }
        attributes: dict[str, Any] = {"hoisted.first": packed_conv(weight, bias, (2, 2))}
        path = "hoisted.first"
    else:
        files = {
            "__torch__.py": net("q = torch.quantize_per_tensor(x, 0.5, 3, 13)\nn = self.net\nreturn ((n.first)).forward(q, )"),
            "__torch__/torch/nn/quantized/modules/conv.py": _SETSTATE,
        }
        conv = Instance("__torch__.torch.nn.quantized.modules.conv.Conv2d", ((2, 2), weight, bias, 2.0, 1))
        attributes = {"net": Instance("__torch__.Inner", {"first": conv})}
    graph = graph_of(archive(tmp_path / "a.pt", files, attributes), "1,3,4,4")
    op = next(op for op in graph.ops if op.kind == "Conv")
    assert op["strides"] == (2, 2) and np.array_equal(graph[op.inputs[1]].data, weight.data) and op.inputs[1] == f"{path}.weight"
    x = np.arange(48, dtype=np.float32).reshape(1, 3, 4, 4)
    kernel = weight.data.astype(np.float32)[:, :, 0, 0] * 0.5
    expected = np.einsum("oi,nihw->nohw", kernel, x[:, :, ::2, ::2]) + bias[:, None, None]
    assert np.abs(values_of(graph, x)[0] - np.clip(expected, -2, 508)).max() <= 1.0


@pytest.mark.parametrize("names", ["{}", "{}.storage"])
def test_constants_lie_beside_the_code_under_two_kinds_of_names(tmp_path: Path, names: str) -> None:
    path = archive(
        tmp_path / "a.ptl",
        net("return torch.reshape(CONSTANTS.c1, [2])"),
        constants=[1, np.array([[5.0, 6.0]], np.float32)],
        constant_names=names,
    )
    assert np.array_equal(values_of(graph_of(path, "1"), np.zeros(1, np.float32))[0], [5.0, 6.0])


def test_a_scale_may_be_a_tensor_that_is_read_as_a_number(tmp_path: Path) -> None:
    attributes = {
        "s": np.array([0.25], np.float32),
        "z": np.array([7], np.int64),
        "t": np.array(0.5, np.float32),
        "o": np.array(1, np.int64),
    }
    body = (
        "q = torch.quantize_per_tensor(x, float(self.s), int(self.z), 13)\n"
        + "return ops.quantized.add(q, q, annotate(float, self.t), annotate(int, self.o))"
    )
    graph = graph_of(archive(tmp_path / "a.pt", net(body), attributes, traced=[("float32", (2, 2))]))
    quantizations = [
        (quantization.step, quantization.point) for name in ("q", *graph.outputs) if (quantization := graph[name].quantization) is not None
    ]
    assert quantizations == [(0.25, 7), (0.5, 1)]


def test_all_that_is_not_covered_is_named_at_once_with_its_lines(tmp_path: Path) -> None:
    body = "a = ops.torchvision.nms(x, x, 0.5)\nfor i in range(torch.len(a)):\n  b = ops.torchvision.roi_align(a, x)\n"
    body += "c = torch.nonsense(x)\nd = torch.nonsense(c)\nreturn torch.relu(d)"
    text = "class Net(Module):\n  def forward(self: __torch__.Net, x: Tensor) -> Tensor:\n" + "".join(
        f"    {line}\n" for line in body.split("\n")
    )
    with pytest.raises(UnsupportedError) as error:
        graph_of(archive(tmp_path / "a.pt", {"__torch__.py": text}, traced=[("float32", (2, 2))]))
    said = str(error.value)
    assert "torchvision::nms (code/__torch__.py:3)" in said and "torchvision::roi_align (code/__torch__.py:5)" in said
    assert "aten::nonsense (2 times, first code/__torch__.py:6)" in said and "relu" not in said


@pytest.mark.parametrize(
    ("body", "attributes", "shape"),
    [
        ("return ops.quantized.conv2d(torch.quantize_per_tensor(x, 0.5, 0, 13), self.p, 1., 0)",
         {"p": packed_conv(_weights(), None)}, ("batch", 3, "height", "width")),
        ("return ops.quantized.conv2d(torch.quantize_per_tensor(torch.permute(x, [0, 3, 1, 2]), 0.5, 0, 13), self.p, 1., 0)",
         {"p": packed_conv(_weights(), None)}, ("batch", "height", "width", 3)),
        ("return ops.quantized.linear(torch.quantize_per_tensor(x, 0.5, 0, 13), self.p, 1., 0)",
         {"p": packed_linear(Quantized(np.ones((2, 5), np.int8), 0.5), None)}, ("batch", 5)),
        ("a, b, c, = torch.size(x); return ops.quantized.linear(torch.quantize_per_tensor(x, 0.5, 0, 13), self.p, 1., 0)",
         {"p": packed_linear(Quantized(np.ones((2, 5), np.int8), 0.5), None)}, ("batch", "length", 5)),
        ("return ops.quantized.conv2d(torch.quantize_per_tensor(torch.sigmoid(x), 0.5, 0, 13), self.p, 1., 0)",
         {"p": packed_conv(_weights(), None)}, ("batch", 3, "height", "width")),
        ("return torch.conv_transpose2d(x, self.w, None, [1, 1], [0, 0], [0, 0], 2)",
         {"w": np.ones((4, 3, 3, 3), np.float32)}, ("batch", 4, "height", "width")),
    ],
)  # fmt: skip
def test_a_shape_that_nobody_states_follows_from_the_first_layer(
    tmp_path: Path, body: str, attributes: dict[str, Any], shape: tuple[Any, ...]
) -> None:
    graph = graph_of(archive(tmp_path / "a.pt", net(body), attributes))
    assert graph["x"].shape == shape and f"x: {', '.join(map(str, shape))}" in graph.metadata["source.guessed_shapes"]


def test_where_no_layer_says_the_shape_the_remedy_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.pt", net("return torch.flatten(x, 1)"))
    with refused(UnsupportedError, "shape-not-stated") as error:
        graph_of(path)
    assert "--input-shape" in error.value.remedy
    assert graph_of(path, "2,3,4")["x"].shape == (2, 3, 4)
    with refused(OptionError, "unknown-input"):
        graph_of(path, "2,3,4; 5")


@pytest.mark.parametrize(
    "body",
    [
        "while True:\n  pass",
        "for i in range(1000000000000):\n  pass",
        "l = [1]\nwhile True:\n  l = torch.add(l, l)",
        "l = [x]\nwhile True:\n  _0 = torch.append(l, x)",
        's = "ab"\nwhile True:\n  s = torch.add(s, s)',
        "n = 3\nwhile True:\n  n = torch.mul(n, n)",
        "while True:\n  x = torch.relu(x)",
        "return (self).forward(x, )",
        "return (self).forward(x, x, )",
        "return (self).absent(x, )",
        "return x" + ".a" * 3000,
        "return " + "-" * 3000 + "x",
        "return " + "torch.relu(" * 90 + "x" + ")" * 90 + "[0]",
        "return torch.relu(x, x, x, x)",
        "return torch.relu()",
        "import os",
        "return lambda: 3",
        "return eval(x)",
        "del x",
        "try:\n  pass\nexcept:\n  pass",
        "return CONSTANTS.c99999999999999999999",
        "return CONSTANTS.c" + "9" * 5000,
        "return torch.kthvalue(x, 0, 1)[0]",
        "return torch.avg_pool2d(torch.reshape(x, [1, 1, 2, 2]), [2, 2], [2, 2], [0, 0], False, True, 0)",
        "return CONSTANTS.c²",
        "return self.p.q.r",
        "return __torch__.absent(x)",
        "return torch.reshape(*x)",
        "return x[0]",
        "return {x: x}",
        "a, b = x",
        "return [1, 2][5]",
        "return torch.floordiv(1, 0)",
        "return torch.pow(2, 1000000000)",
        "return int('9' * 100000)",
        "return 5",
        "return ops.quantized.conv2d_prepack(x)",
        "return ops.quantized.conv2d_prepack(x, None, 1, [0, 0], [1, 1], 1)",
        "return ops.quantized.linear_unpack(x)",
        "x.y = 3",
        "return max()",
        "return range(1, 2, 0)",
        "return torch.len(range(10, 0, -1))",
        "raise 3",
        "ops.prim.RaiseException('no')",
        "return " + "(" * 150 + "x" + ")" * 150,
        "return torch.__getitem__([1], 'a')",
        "return torch.index({}, 3)",
        "return torch.sort([1, 'a'])",
        "y = 10 ** 10",
        "return f'{x}'",
        "return getattr(self)",
        "while True:\n  y = torch.unbind(torch.expand(torch.unsqueeze(x, 0), [9999, 2, 2]), 0)",
        "while True:\n  y = torch.zeros([65536])",
        "while True:\n  y = torch.eye(4096)",
        "while True:\n  x = torch.cat([x, x], 0)",
        "return torch.one_hot(torch.to(x, 4), 1000000000000)",
        "return getattr(self, 'absent')",
    ],
)
def test_code_of_an_attacker_gives_one_error(tmp_path: Path, body: str) -> None:
    text = "class Net(Module):\n  def forward(self: __torch__.Net, x: Tensor) -> Tensor:\n" + "".join(
        f"    {line}\n" for line in body.split("\n")
    )
    with pytest.raises(QConvertError) as error:
        graph_of(archive(tmp_path / "a.pt", {"__torch__.py": text}, traced=[("float32", (2, 2))]))
    assert isinstance(error.value, (InvalidModelError, InvalidGraphError, UnsupportedError)) and len(str(error.value)) < 5000
