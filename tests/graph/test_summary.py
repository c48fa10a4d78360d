"""What people see of a graph: short texts, summaries, and a page's table in which names are no markup."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused
from small_graphs import graph

from qconvert import Op, Quantization, Tensor
from qconvert.errors import InvalidGraphError


def test_texts_are_short() -> None:
    net = graph()
    assert repr(net) == "Graph('net', 2 operators, x: int8[N, 2] -> z: float32[N, 3])"
    assert repr(net["x"]) == "Tensor('x', int8[N, 2], Quantization(scale=0.5, zero_point=3))"
    assert repr(net["w"]) == "Tensor('w', int8[3, 2], Quantization(scale=0.1..2, zero_point=0, axis=0), constant)"
    assert repr(Tensor("u", "float32", None)) == "Tensor('u', float32[?])"
    assert repr(Quantization.per_axis([], 1)) == "Quantization(no scale, axis=1)"


def test_names_and_operators() -> None:
    net = graph()
    assert ("w" in net, "v" in net) == (True, False)
    assert [op.name for op in net] == ["y", "z"]
    assert Op("WriteState", ("x",), (), {"state": "s"}, "ASSIGN_VARIABLE #3").name == "WriteState ASSIGN_VARIABLE #3"


def test_real_values() -> None:
    net = graph()
    np.testing.assert_array_equal(net["b"].float_values(), [1.0, float(np.float32(0.05)) * 20, -1.0])
    assert net["b"].float_values().dtype == np.float64
    with refused(InvalidGraphError, "not-constant", holds=("'x'",)):
        net["x"].float_values()


def test_a_summary_counts() -> None:
    found = graph().summary()
    assert found.operators == {"Gemm": 1, "Dequantize": 1}
    assert (found.quantized, found.computed, found.parameters, found.stored) == (1, 2, 9, {"int32": 12, "int8": 6})
    assert str(found).splitlines() == [
        "net",
        "  input      Tensor('x', int8[N, 2], Quantization(scale=0.5, zero_point=3))",
        "  output     Tensor('z', float32[N, 3])",
        "  operators  2: Gemm 1, Dequantize 1",
        "  quantized  1 of 2 computed tensors",
        "  constants  9 elements: int32 12 bytes, int8 6 bytes",
    ]


def test_a_summary_is_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    graph("net[red]\x1b[31m").summary().show()
    shown = capsys.readouterr().out
    assert "net[red]" in shown and "\x1b" not in shown and "Gemm 1, Dequantize 1" in shown


def test_names_in_a_notebook_are_no_markup() -> None:
    page = graph("<script>alert(1)</script>", "<img src=x onerror=alert(2)>").summary()._repr_html_()
    assert "<script" not in page and "<img" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "&lt;img src=x" in page
