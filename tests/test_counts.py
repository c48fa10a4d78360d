"""Numbers next to nouns in what a conversion says: 1 operator, 2 operators."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qconvert import QConvertError, convert
from qconvert.errors import format_count, format_verb

_SUFFIXES, _LARGEST = (".tflite", ".onnx", ".pt2", ".pt"), 300_000
FIXTURES = sorted(path for path in Path("fixtures").rglob("*") if path.suffix in _SUFFIXES and path.stat().st_size < _LARGEST)
#: One thing of what is counted in the plural, or "is" said of many.
_WRONG = re.compile(r"(?<![\w.,×/:-])(1 (?!bias\b|class\b|axis\b)[a-z0-9-]*s\b(?!')|1 [a-z]+ (are|have)\b|biass|axiss)")


def test_numbers_and_their_nouns() -> None:
    assert [format_count(number, "bias", "are float") for number in (0, 1, 2, 1200)] == [
        "0 biases are float", "1 bias is float", "2 biases are float", "1,200 biases are float",
    ]  # fmt: skip
    assert format_count(1, "operator") == "1 operator" and format_verb(1, "use 7 bits") == "uses 7 bits"


@pytest.mark.parametrize("target", ["ort-x86-vnni", "portable", "tflite"])
def test_notes_of_conversions_count_in_singular_and_plural(target: str, tmp_path: Path) -> None:
    suffix, said = ".tflite" if target == "tflite" else ".onnx", list[str]()
    for path in FIXTURES:
        try:
            report = convert(path, tmp_path / f"result{suffix}", target=target, force=True)
        except QConvertError as error:
            said.append(str(error))
            continue
        said += [str(change) for change in report.changes]
    assert said
    assert [line for line in said if _WRONG.search(line)] == []
