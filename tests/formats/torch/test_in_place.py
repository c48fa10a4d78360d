"""Changes in place in TorchScript: what a tensor is afterwards, what its views are, and what it is a view of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import UnsupportedError
from qconvert.graph import Array
from tests.torchscript_models import computed

pytestmark = pytest.mark.formats

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7


def _of(change: Callable[[Array], None]) -> Array:
    """-X after a change."""
    made = -X
    change(made)
    return made


def _set(place: Any, value: Any) -> Array:
    def change(made: Array) -> None:
        made[place] = value

    return _of(change)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ("v = torch.select(y, 1, -1); _0 = torch.fill_(v, 5.)", _set(np.s_[:, -1], 5)),
        ("v = torch.slice(y, 2, 1, 3); _0 = torch.zero_(v)", _set(np.s_[..., 1:3], 0)),
        ("v = torch.slice(y, 2, 0, None, 2); _0 = torch.zero_(v)", _set(np.s_[..., ::2], 0)),
        ("v = torch.slice(y, 2, 1, -1, 2); _0 = torch.fill_(v, 3)", _set(np.s_[..., 1:-1:2], 3)),
        ("v = torch.slice(y, 2, -3); w = torch.select(v, 0, 1); _0 = torch.fill_(w, 2)", _set(np.s_[1, :, -3:], 2)),
        ("v = torch.narrow(y, 1, 1, 2); _0 = torch.mul_(v, 0)", _set(np.s_[:, 1:], 0)),
        ("v = torch.view(y, [-1]); _0 = torch.fill_(torch.select(v, 0, 3), 9)", _set((0, 0, 3), 9)),
        ("v = torch.permute(y, [2, 0, 1]); _0 = torch.fill_(torch.select(v, 0, 1), 9)", _set(np.s_[..., 1], 9)),
        ("v = torch.transpose(y, 0, 1); _0 = torch.fill_(torch.select(v, 0, 1), 9)", _set(np.s_[:, 1], 9)),
        ("v = torch.movedim(y, 0, 2); _0 = torch.fill_(torch.select(v, 0, 1), 9)", _set(np.s_[:, 1], 9)),
        ("v = torch.squeeze(torch.unsqueeze(y, 0), 0); _0 = torch.fill_(v, 9)", _set(..., 9)),
        ("a, b, c = torch.unbind(y, 1); _0 = torch.fill_(b, 9)", _set(np.s_[:, 1], 9)),
        ("a, b = torch.chunk(y, 2, 2); _0 = torch.fill_(b, 9)", _set(np.s_[..., 2:], 9)),
        ("a, b = torch.split_with_sizes(y, [1, 3], 2); _0 = torch.fill_(b, 9)", _set(np.s_[..., 1:], 9)),
        ("v = torch.float(y); _0 = torch.fill_(v, 9)", _set(..., 9)),
        ("v = torch.double(y); _0 = torch.fill_(v, 9)", -X),
        ("v = torch.clone(y); _0 = torch.fill_(v, 9)", -X),
        ("v = torch.reshape(y, [-1]); _0 = torch.fill_(torch.select(v, 0, 1), 9)", _set((0, 0, 1), 9)),
        ("_0 = torch.add_(y, torch.double(x))", np.zeros_like(X)),
        ("for i in range(3):\n  v = torch.select(y, 1, i)\n  _0 = torch.fill_(v, i)", _set(..., np.arange(3)[:, None])),
    ],
)  # fmt: skip
def test_what_is_changed_through_a_view_is_changed(tmp_path: Path, change: str, wanted: Array) -> None:
    lines = [f"{line}" for line in change.split("; ")]
    text = "\n".join(["y = torch.neg(x)", *lines, "return y"])
    (found,) = _computed(tmp_path / "a.pt", text)
    assert found.dtype == np.float32 and np.array_equal(found, wanted)


def _computed(path: Path, body: str) -> list[Array]:
    from tests.torchscript_models import archive, graph_of, values_of

    head = "class Net(Module):\n  def forward(self: __torch__.Net, x: Tensor) -> Tensor:\n"
    code = head + "".join(f"    {line}\n" for line in body.split("\n"))
    return values_of(graph_of(archive(path, {"__torch__.py": code}, traced=[("float32", X.shape)])), X)


def test_views_that_were_made_before_a_change_show_it(tmp_path: Path) -> None:
    body = "y = torch.neg(x); v = torch.select(y, 0, 1); w = torch.slice(v, 1, 2); _0 = torch.fill_(y, 4)"
    body += "; _1 = torch.add_(v, 1); return w, y, v"
    w, y, v = computed(tmp_path / "a.pt", body, X)
    assert (w == 5).all() and (v == 5).all() and (y[0] == 4).all() and (y[1] == 5).all() and w.shape == (3, 2)


def test_a_tensor_that_gets_another_shape_in_place_is_a_view_of_what_it_was(tmp_path: Path) -> None:
    body = "y = torch.neg(x); v = torch.select(y, 0, 1); _0 = torch.transpose_(v, 0, 1)"
    body += "; _1 = torch.fill_(torch.select(v, 0, 0), 4); return y, v"
    y, v = computed(tmp_path / "a.pt", body, X)
    assert np.array_equal(y, _set(np.s_[1, :, 0], 4)) and np.array_equal(v, y[1].T)


@pytest.mark.parametrize("change", ["torch.fill_(v, 9); return y", "torch.fill_(y, 9); return v"])
def test_what_may_be_a_copy_or_a_view_is_refused_where_it_matters(tmp_path: Path, change: str) -> None:
    body = f"y = torch.transpose(x, 0, 1); v = torch.reshape(y, [-1]); _0 = {change}"
    with refused(UnsupportedError, "change-of-a-view"):
        computed(tmp_path / "a.pt", body, X)
    (found,) = computed(tmp_path / "b.pt", body[: body.index("return")] + ("return v" if "(v, 9)" in body else "return y"), X)
    assert (found == 9).all()


def test_a_change_of_what_an_expansion_repeats_is_refused(tmp_path: Path) -> None:
    with refused(UnsupportedError, "change-of-a-view"):
        computed(tmp_path / "a.pt", "y = torch.neg(x); v = torch.expand(y, [2, 2, 3, 4]); _0 = torch.fill_(v, 9); return y", X)
