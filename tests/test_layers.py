"""The house: which room imports which, read from the code, those imports inside functions and under TYPE_CHECKING too."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_house", ROOT / "docs" / "make_house.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_room_has_its_floor(house: ModuleType) -> None:
    rooms = {house.room_of(module) for module in house.modules()}
    assert rooms == {*house.ORDER, "formats"} - ({"formats"} - rooms)


def test_every_folder_of_modules_is_a_package() -> None:
    """Without it Python imports the folder all the same, but tools that read the code, as the site's does, find nothing in it."""
    folders = {path.parent for path in (ROOT / "qconvert").rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_plugins_import_what_is_public() -> None:
    """A package in plugins/ uses what any author can use: what it lacks in qconvert.plugin or qconvert.testing is added there."""
    found = set()
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [item.name for item in node.names] if isinstance(node, ast.Import) else []
            found |= {(path.name, name) for name in named if name.split(".")[0] == "qconvert"}
    assert {name for _, name in found} == {"qconvert", "qconvert.plugin", "qconvert.testing"}, sorted(found)


def test_no_arrow_goes_upwards(house: ModuleType) -> None:
    """A room imports rooms before it alone, so there is no circle either."""
    order = house.ORDER
    upwards = [place for (a, b), places in house.arrows().items() if order.index(b) > order.index(a) for place in places]
    assert upwards == []


def test_formats_do_not_know_each_other(house: ModuleType) -> None:
    formats = {"formats.tflite", "formats.onnx", "formats.torch", "formats.qgraph", "formats.encodings"}
    formats |= {"formats.calibration_cache", "formats.ncnn"}
    assert [pair for pair in house.arrows() if set(pair) <= formats] == []
    assert [pair for pair in house.arrows() if pair[0] == "passes" and pair[1] in formats] == []


def test_arithmetic_is_pure(house: ModuleType) -> None:
    assert {b for a, b in house.arrows() if a == "arithmetic"} <= {"errors"}


def test_the_picture_is_made_from_the_code(house: ModuleType) -> None:
    assert house.PAGE.read_text() == house.page(), "python docs/make_house.py draws it again"
    assert house.PICTURE.read_text() == house.svg(), "python docs/make_house.py draws it again"


def test_heavy_packages_are_imported_inside_functions(house: ModuleType) -> None:
    heavy = {
        "onnx",
        "onnxruntime",
        "onnx_ir",
        "ai_edge_litert",
        "tflite_micro",
        "torch",
        "MNN",
        "tensorrt",
        "safetensors",
        "rich",
        "PIL",
        "ml_dtypes",
    }
    found = []
    for module, path in house.modules().items():
        for node in ast.parse(path.read_text()).body:
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            found += [f"{module}:{node.lineno} {name}" for name in names if name.split(".")[0] in heavy]
    assert found == []


def test_deferred_imports_name_what_is_there() -> None:
    """What is imported at a call stands as text, which mypy does not read."""
    import re

    named = re.compile(r'(?:_lazy|defer_imports\("qconvert\.targets"\))\("([\w.]+)", "(\w+)"\)')
    found = [(path.parent, *names) for path in (ROOT / "qconvert").rglob("*.py") for names in named.findall(path.read_text())]
    files = {(folder, module): folder / f"{module.replace('.', '/')}.py" for folder, module, _ in found}
    lacking = [
        (module, name)
        for folder, module, name in found
        if not re.search(rf"^(def|class) {name}\b|^from .* import .*\b{name}\b", files[folder, module].read_text(), re.MULTILINE)
    ]
    assert len(found) > 40 and lacking == []
