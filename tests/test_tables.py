"""What reports say of themselves in terminals and notebooks; names of models stay text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qconvert
from qconvert.calibration.driver import run_calibration
from qconvert.checking.findings import CheckReport, Finding, OutputComparison
from qconvert.tables import Rows, Shown, numbers

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "tiny_ad_toycar_int8.tflite"
SCRIPT = "<script>alert(1)</script>\x1b[31m"


class _Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(item: Shown) -> _Cells:
    return _Cells(item._repr_html_())


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, qconvert.ConversionReport]:
    out = tmp_path_factory.mktemp("tables") / "out.onnx"
    return out, qconvert.convert(MODEL, out)


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_conversion_and_its_check(converted: tuple[Path, qconvert.ConversionReport], capsys: pytest.CaptureFixture[str]) -> None:
    out, report = converted
    assert "became out.onnx: all scales and integers are the source's" in repr(report)
    assert "weights" in " ".join(page_of(report).text)
    found = qconvert.check(MODEL, out, samples=1, per_op=True)
    assert repr(found) == f"<CheckReport: {found.sentence}>" and found.sentence.startswith(
        "passed: out.onnx vs. tiny_ad_toycar_int8.tflite: "
    )
    found.show()
    shown = capsys.readouterr().out
    assert shown.startswith("passed: out.onnx") and "100%" in shown and "FULLY" in shown


@pytest.mark.litert
@pytest.mark.onnxruntime
def test_every_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Each says what it is in its repr, prints, and makes a page of its rows."""
    network = FIXTURES / "digits" / "float.onnx"
    images = [{"x": np.full((1, 1, 8, 8), value, np.float32)} for value in (0.0, 1.0)]
    name = qconvert.load(network).inputs[0]
    reports: dict[str, Shown] = {
        "run on integers": qconvert.audit(MODEL, "ort-x86"),
        "are the same after": qconvert.roundtrip(MODEL, "onnx:qoperator", samples=1),
        "encodings": qconvert.extract_scales(MODEL)[1],
        "from 2 samples": run_calibration(network, [{name: item["x"]} for item in images]),
        "constants": qconvert.load(MODEL).summary(),
        "operators outside": qconvert.partition(MODEL, "tensorrt"),
    }
    for words, report in reports.items():
        assert words in repr(report) and repr(report).startswith(f"<{type(report).__name__}: "), report
        assert len(repr(report)) < 300
        rows = sum(len(item.rows) for item in report.tables())
        report.show()
        assert rows and capsys.readouterr().out.startswith(report.sentence)
        assert page_of(report).elements.count("tr") >= min(rows, 200)
        for item in report.tables():
            assert {len(row) for row in item.rows} <= {len(item.columns)}, item.title
            assert not item.marks or len(item.marks) == len(item.rows)


def test_names_are_text() -> None:
    finding = Finding("unexplained", SCRIPT, 0.5, float("inf"), 0.0, 3, SCRIPT, SCRIPT)
    output = OutputComparison(SCRIPT, 0.5, 3.0, 1.0, "LSB", None, None)
    report = CheckReport(SCRIPT, SCRIPT, 1, (output,), (finding,), (SCRIPT,), notes=(SCRIPT,))
    assert "script" not in page_of(report).elements and "\x1b" not in report._repr_html_()
    assert "<script>alert(1)</script>" in " ".join(page_of(report).text)
    assert "\x1b" not in repr(report)


def test_a_long_table_says_that_it_is_cut() -> None:
    class Long(Shown):
        sentence = "long"

        def tables(self) -> list[Rows]:
            return [Rows("T", ("a", ">b"), tuple((str(i), "x") for i in range(250)), folded=True)]

    page = page_of(Long())
    assert page.elements.count("tr") == 201 and "details" in page.elements
    assert "… and 50 more rows." in page.text


@pytest.mark.parametrize(
    ("values", "words"), [([0.5], "0.5"), ([0.5, 0.5], "0.5 × 2"), ([], ""), ([1, 2], "1, 2"), (range(9), "0, 1, 2, 3 … (9)")]
)
def test_numbers(values: Any, words: str) -> None:
    assert numbers(np.array(list(values), np.float32)) == words


def test_what_the_command_prints_of_a_check_is_what_its_tables_say(capsys: pytest.CaptureFixture[str]) -> None:
    """The terminal and the page have one table of operators, and one sentence on their classes."""
    from qconvert.cli.reports import print_check

    findings = (
        Finding("requantized", "as declared", 0.5, 2.0, 1.0, 0, "CONV_2D #0", "a", 41.25),
        Finding("requantized", "as declared", 0.25, 3.0, 0.0, 0, "CONV_2D #1", "b", 30.5),
        Finding("one rounding", "rounding tie", 0.999, 1.0, 0.001, 0, "ADD #2", "c"),
    )
    report = CheckReport("m.tflite", "m.onnx", 1, (), findings, ())
    table = report.tables()[2]
    assert table.note == "2 requantized (as declared, SQNR 30.5 to 41.2 dB); 1 one rounding (rounding tie)"
    assert table.rows[0] == ("CONV_2D #0", "a", "50.0000%", "2", "100%", "requantized, 41.2 dB", "as declared")
    print_check(report)
    shown = capsys.readouterr().out
    assert table.note in shown
    for row, heads in ((row, table.columns) for row in table.rows):
        assert all(cell in shown for cell in row[:-1]) and all(head.lstrip(">~") in shown for head in heads[:-1])
