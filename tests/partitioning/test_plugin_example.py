"""The code generator of docs/plugins.md, as a file that --plugin loads: its artefacts run, and a check finds what it does wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refused

ROOT = Path(__file__).parents[2]
KEYWORDS = ROOT / "fixtures" / "tiny_kws_dscnn_int8.tflite"


def example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "plugins.md").read_text(), re.S)
    (block,) = [block for block in blocks if "qconvert_codegen" in block]
    return str(block)


def run(plugin: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qconvert", "--plugin", str(plugin), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.end_to_end
def test_the_documented_code_generator(tmp_path: Path) -> None:
    assert len([line for line in example().splitlines() if line.strip()]) <= 32
    plugin = tmp_path / "my_dsp.py"
    plugin.write_text(example())
    done = run(plugin, "partition", KEYWORDS, "--target", "my-dsp", "--split", tmp_path / "parts", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["regions"][0]["target"] == "my-dsp" and [item["kind"] for item in found["outside"]] == ["Softmax"]
    assert sorted(item.suffix for item in (tmp_path / "parts").iterdir()) == [".dsp", ".json", ".onnx", ".qgraph", ".qgraph"]
    checked = run(plugin, "check", KEYWORDS, tmp_path / "parts" / "manifest.json", "--samples", "2")
    assert checked.returncode == 0 and "passed" in checked.stdout, checked.stdout


@pytest.mark.end_to_end
def test_a_code_generator_that_is_wrong_is_found(tmp_path: Path) -> None:
    """Its convolutions lose their lowest bits."""
    plugin = tmp_path / "my_dsp.py"
    right = 'compile=lambda graph, path: save(graph, path, "qgraph")'
    assert right in example()
    wrong = 'compile=lambda graph, path: save(graph.evolve(tensors=[coarse(t) for t in graph.constants()]), path, "qgraph")'
    helper = (
        "\n\ndef coarse(t):\n    from dataclasses import replace\n    return replace(t, data=t.data // 4 * 4) if t.dtype == 'int8' else t\n"
    )
    plugin.write_text(example().replace(right, wrong) + helper)
    assert run(plugin, "partition", KEYWORDS, "--target", "my-dsp", "--split", tmp_path / "parts", "--quiet").returncode == 0
    checked = run(plugin, "check", KEYWORDS, tmp_path / "parts" / "manifest.json", "--samples", "2")
    assert checked.returncode == 1
    assert "the region 'my-dsp_0' of my-dsp (00_my-dsp_0.dsp) computes values that differ from the source's" in checked.stdout


def test_code_generators_of_plugins(tmp_path: Path) -> None:
    """One for each target; a suffix has its dot; what is none is said."""

    from qconvert import register
    from qconvert.errors import OptionError
    from qconvert.plugin import Codegen, hookimpl, temporary_plugin

    def compiled(graph: object, path: Path) -> None:
        return None

    class Plugin:
        def __init__(self, *given: object) -> None:
            self.given = given

        @hookimpl
        def qconvert_codegen(self) -> object:
            return self.given

    class Other(Plugin):
        pass

    with refused(OptionError, "malformed-suffix", holds=("'npu'",)):
        Codegen("t", "npu", compiled, "r")
    with refused(OptionError, "plugin-fails"):
        register(Plugin("x"), "wrong")
    with temporary_plugin(Plugin(Codegen("t", ".npu", compiled, "r")), "one"):
        with refused(OptionError, "plugin-fails", holds=("'t'",)):
            register(Other(Codegen("t", ".npu", compiled, "r")), "two")
        with temporary_plugin(Other(Codegen("t", ".npu", compiled, "q", replaces="t")), "three"):
            from qconvert.plugins import codegen_of

            found = codegen_of("t")
            assert found is not None and found.runtime == "q"
