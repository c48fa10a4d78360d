"""Conversions give the files that they gave before the code took its present shape, byte for byte.

hashes.json was made by conversions.py at 4b70967. What differs from then on and why: notes in ONNX metadata name the attribute
`arithmetic`, which was `ties` and `fixed_point`; conversions.py leaves these notes out.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conversions", FOLDER / "conversions.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONVERSIONS = _module()
HASHES: dict[str, str] = json.loads((FOLDER / "hashes.json").read_text())
MODELS = CONVERSIONS.models()


def test_the_fixtures_are_there() -> None:
    assert len(MODELS) >= 39 and len(HASHES) == 522


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_a_model_is_converted_to_the_same_bytes(path: Path) -> None:
    found: dict[str, Any] = {}
    for case in CONVERSIONS.cases():
        if case[0] == path:
            found[CONVERSIONS.key(*case)] = CONVERSIONS.outcome(*case)
    assert found == {key: HASHES[key] for key in found}
    assert len(found) == 9
