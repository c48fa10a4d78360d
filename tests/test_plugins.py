"""The example plugin, and the examples of docs/plugins.md, through the plugin host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qconvert
import qconvert.plugin

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "plugins" / "qconvert-scale-table"
MODEL = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"
DOCS = ROOT / "docs" / "plugins.md"


def install(folder: Path, name: str, entry_points: str, module: Path | str) -> None:
    """What pip does for a package of one module: its metadata with entry points, and the module next to it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    text = module.read_text() if isinstance(module, Path) else module
    (folder / f"{name}.py").write_text(text)


def run(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = ["qconvert", *map(str, arguments)]
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = {words!r}; from qconvert.cli.app import main; main()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_example_plugin_writes_and_applies_a_table(tmp_path: Path) -> None:
    project = (PLUGIN / "pyproject.toml").read_text()
    assert 'scale-table = "qconvert_scale_table"' in project
    entry_points = "[qconvert]\nscale-table = qconvert_scale_table\n"
    install(tmp_path, "qconvert_scale_table", entry_points, PLUGIN / "qconvert_scale_table" / "__init__.py")
    done = run(tmp_path, "extract-scales", MODEL, tmp_path / "model.scales", "--float", tmp_path / "float.onnx")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, "apply", tmp_path / "float.onnx", tmp_path / "model.scales", "-o", tmp_path / "q.onnx", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["on_floats"] == {}, done.stderr
    rows = [line.split("\t") for line in (tmp_path / "model.scales").read_text().splitlines()]
    assert rows[0] == ["name", "type", "axis", "scale", "zero_point"]
    found = {row[0]: row for row in rows[1:]}
    assert found["Identity"][3:] == ["0.00390625", "-128"]
    assert [row[2] for row in rows[1:] if row[1] == "int8" and row[2]] == ["0"] * 9


def test_the_example_plugin_passes_its_own_tests(tmp_path: Path) -> None:
    entry_points = "[qconvert]\nscale-table = qconvert_scale_table\n"
    install(tmp_path, "qconvert_scale_table", entry_points, PLUGIN / "qconvert_scale_table" / "__init__.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN / "tests")]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_the_documented_examples_work(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    assert len(blocks) >= 5
    for number, block in enumerate(blocks):
        install(tmp_path, f"example_{number}", f"[qconvert]\nexample-{number} = example_{number}\n", block)
    plugins = json.loads(run(tmp_path, "plugins", "--json").stdout)["items"]
    assert [item["problem"] for item in plugins if item["name"].startswith("example")] == [""] * len(blocks)
    listed = json.loads(run(tmp_path, "formats", "--json").stdout)
    assert "counts" in {item["name"] for item in listed["formats"]}
    assert "my-npu" in {item["name"] for item in listed["targets"]}
    assert "drop_identity" in {item["name"] for item in listed["passes"]}
    assert {"name": "evaluator", "formats": ["qgraph"], "kernels": ["exact"], "summary": "exact values, rounded once"} in listed["runtimes"]
    done = run(tmp_path, "convert", MODEL, tmp_path / "bits.onnx", "--pass", "fewer_bits:bits=4")
    assert "fewer_bits: 10 weights have 4 bits" in done.stdout
    refused = run(tmp_path, "convert", MODEL, tmp_path / "none.onnx", "--pass", "fewer_bits", "-O", "bits=3")
    assert refused.returncode == 2 and "the option bits is 3\nUse 4 or 5 or 6 or 7 or 8." in refused.stderr
    done = run(tmp_path, "extract-scales", MODEL, tmp_path / "kws.ranges", "--float", tmp_path / "float.onnx")
    assert "10 scales have no place in the file" in done.stdout, done.stderr
    done = run(tmp_path, "apply", tmp_path / "float.onnx", tmp_path / "kws.ranges", "-o", tmp_path / "kws.onnx", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["on_floats"] == {}, done.stderr
    graphs = [qconvert.load(path) for path in (MODEL, tmp_path / "kws.onnx")]
    scales = [sorted(t.quantization.step for t in graph.tensors.values() if t.quantization) for graph in graphs]
    assert set(scales[0]) == set(scales[1])
    done = run(tmp_path, "convert", MODEL, tmp_path / "model.counts")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "model.counts").read_text())["Conv"] == 9
    done = run(tmp_path, "tflite2onnx", MODEL, tmp_path / "npu.onnx", "--target", "my-npu", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"] == "my-npu"
    assert run(tmp_path, "check", MODEL, tmp_path / "npu.onnx", "--samples", "1", "--max-lsb", "1").returncode == 0
    assert run(tmp_path, "convert", MODEL, tmp_path / "model.qgraph").returncode == 0
    checked = run(tmp_path, "check", MODEL, tmp_path / "model.qgraph", "--samples", "1", "--per-op")
    assert checked.returncode == 0, checked.stdout


def test_the_documented_process_runs(tmp_path: Path) -> None:
    """Its program next to it; a program that crashes ends in an error with its words."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    program, plugin = (next(block for block in blocks if text in block) for text in ("def start():", "Child(Path"))
    (tmp_path / "child.py").write_text(program)
    (tmp_path / "plugin.py").write_text(plugin)
    names: dict[str, Any] = {"__file__": str(tmp_path / "plugin.py")}
    exec(compile(plugin, "plugin.py", "exec"), names)
    file = qconvert.plugin.ModelFile(tmp_path / "m.qgraph", "chip")
    model = names["Model"](file)
    assert model.run({"x": np.float32([[-1, 2, -3, 4]])})["y"].tolist() == [[0, 2, 0, 4]]
    (tmp_path / "child.py").write_text(program.replace("loaded.append", "__import__('os').abort(), loaded.append"))
    with pytest.raises(qconvert.QConvertError, match="the tool's process was ended by SIGABRT"):
        names["Model"](file)


def test_a_documented_operator_is_read(tmp_path: Path) -> None:
    """The example reads a custom operator MyRelu; without it the operator is carried or reported."""
    from tflite_models import TensorSpec, single_op

    x, y = (TensorSpec(name, (1, 8), "int8", 0.1, -5) for name in "xy")
    (tmp_path / "custom.tflite").write_bytes(single_op("MyRelu", {}, [x], [y], custom=True))
    done = run(tmp_path, "tflite2onnx", tmp_path / "custom.tflite", tmp_path / "out.onnx", "-O", "custom=refuse")
    assert done.returncode == 2
    assert "MyRelu (1)" in done.stderr
    block = next(b for b in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if "MyRelu" in b)
    install(tmp_path, "my_relu", "[qconvert]\nmy-relu = my_relu\n", block)
    done = run(tmp_path, "tflite2onnx", tmp_path / "custom.tflite", tmp_path / "out.onnx", "--json")
    assert json.loads(done.stdout)["operators"]["Clip"] == 1  # which ONNX writes for a Relu of integers


FAILING = {
    "raises": ("qconvert_formats", "raise RuntimeError('boom')", "in qconvert_formats: RuntimeError: boom"),
    "wrong": ("qconvert_passes", "return ['x']", "in qconvert_passes: TypeError: 'x' is no Pass"),
    "alone": (
        "qconvert_targets",
        "return qconvert.Target('t', 'onnx', '')",
        "in qconvert_targets: TypeError: 'Target' object is not iterable",
    ),
    "kinds": ("qconvert_kinds", "raise RuntimeError('boom')", "RuntimeError: boom"),
}


def test_plugins_whose_hooks_fail_are_named_and_skipped(tmp_path: Path) -> None:
    """A hook that fails must not stop commands that do not need it, and least of all the one that lists plugins."""
    for name, (hook, body, _) in FAILING.items():
        module = f"import qconvert.plugins as qconvert\n\n@qconvert.hookimpl\ndef {hook}():\n    {body}\n"
        install(tmp_path, f"bad_{name}", f"[qconvert]\n{name} = bad_{name}\n", module)
    listed = {item["name"]: item["problem"] for item in json.loads(run(tmp_path, "plugins", "--json").stdout)["items"]}
    for name, (_, _, problem) in FAILING.items():
        assert listed[name].startswith(problem)
    assert run(tmp_path, "convert", MODEL, tmp_path / "model.onnx").returncode == 0


def test_a_table_of_operators_that_fails_is_skipped_and_named(tmp_path: Path) -> None:
    module = "import qconvert\n\n@qconvert.hookimpl\ndef qconvert_operators(format, direction):\n    raise RuntimeError('boom')\n"
    install(tmp_path, "bad_table", "[qconvert]\ntable = bad_table\n", module)
    done = run(tmp_path, "convert", MODEL, tmp_path / "model.onnx")
    assert (done.returncode, done.stderr) == (0, "note: the plugin table is skipped, in qconvert_operators: RuntimeError: boom\n")
    assert run(tmp_path, "convert", MODEL, tmp_path / "model.onnx", "--force", "--quiet").stderr == ""
    listed = json.loads(run(tmp_path, "plugins", "--json").stdout)["items"]
    assert listed[-1]["problem"] == "in qconvert_operators: RuntimeError: boom"


def test_installed_plugins_can_be_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        install(tmp_path, f"plugin_{name}", f"[qconvert]\n{name} = plugin_{name}\n", "print('imported', __name__)\n")
    for wanted, left in (("1", []), ("one", ["two"]), ("two, one", [])):
        monkeypatch.setenv("QCONVERT_DISABLE_PLUGINS", wanted)
        done = run(tmp_path, "plugins", "--json")
        imported, _, document = done.stdout.partition("{")
        assert imported.split() == [word for name in left for word in ("imported", f"plugin_{name}")]
        problems = {item["name"]: item["problem"] for item in json.loads("{" + document)["items"][-2:]}
        assert problems == {name: "" if name in left else "disabled by QCONVERT_DISABLE_PLUGINS" for name in ("one", "two")}


def test_a_file_with_a_plugin_needs_no_installation(tmp_path: Path) -> None:
    write = "lambda graph, path, options: path.write_text(str(len(graph.ops))) and ()"
    text = "from qconvert import Format, hookimpl\n\n@hookimpl\n"
    text += f"def qconvert_formats():\n    return [Format('size', ('.size',), '', write={write})]\n"
    plugin = tmp_path / "size_format.py"
    plugin.write_text(text)
    done = run(tmp_path / "none", "convert", MODEL, tmp_path / "model.size", f"--plugin={plugin}")
    assert done.returncode == 0 and int((tmp_path / "model.size").read_text()) > 9, done.stderr
    plugin.write_text(text.replace("str(", "str(1 / 0 + "))
    done = run(tmp_path / "none", "--plugin", plugin, "convert", MODEL, tmp_path / "other.size")
    assert done.returncode == 2 and "by a fault of the plugin size_format (ZeroDivisionError: division by zero)" in done.stderr
    assert not (tmp_path / "other.size").exists()
    plugin.write_text(
        text.replace("qconvert import", "qconvert import QConvertError,").replace(
            "str(", "(_ for _ in ()).throw(QConvertError('full')) or str("
        )
    )
    done = run(tmp_path / "none", "--plugin", plugin, "convert", MODEL, tmp_path / "other.size")
    assert done.returncode == 2 and "full\nThe plugin size_format raised this error." in done.stderr
    plugin.write_text("raise SystemExit('boom')")
    done = run(tmp_path / "none", "plugins", "--plugin", plugin)
    assert done.returncode == 2 and "size_format.py: fails: SystemExit: boom" in done.stderr
    done = run(tmp_path / "none", "plugins", "--plugin", tmp_path / "absent.py")
    assert done.returncode == 2 and "absent.py: the plugin does not exist" in done.stderr


def test_a_package_with_a_plugin_needs_no_installation(tmp_path: Path) -> None:
    package = tmp_path / "chip_tools"
    package.mkdir()
    (package / "summary.py").write_text('TEXT = "sizes"\n')
    head = "from chip_tools.summary import TEXT\nfrom qconvert.plugin import Format, hookimpl\n"
    (package / "__init__.py").write_text(f"{head}@hookimpl\ndef qconvert_formats():\n    return [Format('sizes', ('.sizes',), TEXT)]\n")
    done = run(tmp_path / "none", "plugins", "--plugin", package / "__init__.py", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["items"][-1]["name"] == "chip_tools", done.stderr


def test_a_new_package_passes_its_tests_and_works(tmp_path: Path) -> None:
    done = run(tmp_path / "none", "plugin", "new", "my-chip", "--in", tmp_path)
    assert done.returncode == 0, done.stderr
    place = tmp_path / "qconvert-my-chip"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in (["pytest", "-q", "-p", "no:cacheprovider"], ["ruff", "check", "--isolated"]):
        tested = subprocess.run([sys.executable, "-m", *command], cwd=place, capture_output=True, text=True, check=False, env=environment)
        assert tested.returncode == 0, tested.stdout + tested.stderr
        assert command[0] != "pytest" or "9 passed" in tested.stdout
    plugin = place / "qconvert_my_chip" / "__init__.py"
    moved = tmp_path / "chip_plugin.py"
    moved.write_text(plugin.read_text())
    wanted = run(tmp_path / "none", "--plugin", moved, "convert", MODEL, tmp_path / "kws.my-chip")
    assert wanted.returncode == 0 and json.loads((tmp_path / "kws.my-chip").read_text())["Conv"] == 9, wanted.stderr
    for name, problem in (("my-chip", "is there already"), ("My Chip", "is no name of a plugin"), ("../x", "is no name of a plugin")):
        refused = run(tmp_path / "none", "plugin", "new", name, "--in", tmp_path)
        assert refused.returncode == 2 and problem in refused.stderr
