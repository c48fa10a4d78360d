"""The command convert: which files it takes and leaves alone, and what it says."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from qconvert import convert
from qconvert.errors import OptionError

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"


@pytest.mark.parametrize("which", ["model.onnx", "weights.bin"])
def test_a_conversion_replaces_no_file_of_its_source(which: str, tmp_path: Path) -> None:
    source, result = tmp_path / "model.onnx", tmp_path / "result.onnx"
    convert(MODEL, source, target="generic")
    onnx.save_model(onnx.load(source), source, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    os.link(tmp_path / which, result)
    with pytest.raises(OptionError, match=f"read by the conversion .*{which}"):
        convert(source, result, force=True)
    result.unlink()
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before and len(before) == 2
