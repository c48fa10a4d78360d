"""What errors and notes tell a user to write exists, and runs as it stands."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from test_cli import run

from qconvert.cli.app import all_commands
from qconvert.plugins import declared_options, passes

ROOT = Path(__file__).parent.parent / "qconvert"
FIXTURES = ROOT.parent / "fixtures"
MODEL = FIXTURES / "tiny_kws_dscnn_int8.tflite"
#: Flags of other programs that texts name.
OTHERS = {
    "--help", "--help-all",
    "--calib", "--int8", "--onnx", "--saveEngine", "--stronglyTyped", "--minShapes", "--optShapes", "--maxShapes",  # trtexec
    "--bizCode", "--compressionParamsFile", "--modelFile", "--MNNModel", "--saveExternalData",  # MNNConvert
    "--index-url",  # pip
}  # fmt: skip


def _texts() -> Iterator[tuple[str, str]]:
    """Every text in the code that names a flag, but docstrings and the command line's own."""
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        owners = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        docstrings = {id(node.body[0].value) for node in owners if node.body and isinstance(node.body[0], ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def _flags() -> set[str]:
    group = typer.main.get_command(all_commands())
    commands = [group, *group.commands.values()]  # type: ignore[attr-defined]
    commands += [inner for command in commands for inner in getattr(command, "commands", {}).values()]
    return {word for command in commands for item in command.params for word in (*item.opts, *item.secondary_opts)}


def test_flags_and_options_in_texts_exist() -> None:
    known, options = _flags() | OTHERS, declared_options()
    missing = []
    for place, text in _texts():
        missing += [f"{place}: {flag}" for flag in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", text) if flag not in known]
        missing += [
            f"{place}: -O {name}" for name in re.findall(r"(?<!\w)-O (\w+)(?==|\b)", text) if name not in options and name != "name"
        ]
        missing += [f"{place}: --pass {name}" for name in re.findall(r"--pass ([a-z_0-9]+)", text) if name not in passes()]
    assert missing == []


@pytest.mark.end_to_end
def test_commands_that_are_suggested_run_when_they_are_pasted(tmp_path: Path) -> None:
    result = tmp_path / "a model.onnx"
    done = run("convert", MODEL, result)
    (command,) = re.findall(r"^next: (qconvert check .*)$", done.stdout, re.MULTILINE)
    assert _pasted(command, tmp_path).returncode == 0
    wrong = run("onnx2tflite", MODEL, tmp_path / "b.tflite")
    (command,) = re.findall(r"`(qconvert [^`]*)`", wrong.stderr)
    assert wrong.returncode == 2 and _pasted(command, tmp_path).returncode == 0
    for mistake in (
        ("convert", MODEL, tmp_path / "c.onnx", "--target", "nothing"),
        ("convert", MODEL, tmp_path / "c.onnx", "--pass", "nothing"),
    ):
        refused = run(*mistake)
        named = re.findall(r"Known \w+: (\w[\w-]*)", refused.stderr)
        assert refused.returncode == 2 and named


@pytest.mark.end_to_end
def test_code_that_is_suggested_is_code() -> None:
    refused = run("inspect", FIXTURES / "torch" / "small" / "qat_fbgemm_state.pth")
    lines = [line.strip() for line in refused.stderr.splitlines() if line.startswith("    ")]
    assert refused.returncode == 2 and len(lines) == 3
    ast.parse("\n".join(lines))


def _pasted(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    return subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
