"""Which packages announce plugins is seen in their metadata, without importlib.metadata where none does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qconvert.plugins import host

ENTRY = "[qconvert]\nmine = my_package\n"


@pytest.mark.parametrize(
    ("file", "content", "may"),
    [
        ("mine-1.0.dist-info/entry_points.txt", ENTRY, True),
        ("mine-1.0.dist-info/entry_points.txt", "[console_scripts]\nx = y:z\n\n[ qconvert ]\nmine = my_package\n", True),
        ("mine.egg-info/entry_points.txt", ENTRY, True),
        ("mine-1.0-py3.11.egg/EGG-INFO/entry_points.txt", ENTRY, True),
        ("mine-1.0.dist-info/entry_points.txt", "[console_scripts]\nqconvert = qconvert.cli.app:main\n", False),
        ("mine-1.0.dist-info/METADATA", "Name: mine\n", False),
        ("mine/entry_points.txt", ENTRY, False),
    ],
)
def test_metadata(file: str, content: str, may: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent")])
    asked: list[str] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: asked.append(group) or ["found"])
    assert host.announced_plugins() == (["found"] if may else [])
    assert asked == (["qconvert"] if may else [])


def test_an_archive_on_the_path_is_left_to_importlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages.zip").write_bytes(b"PK")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages.zip")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ["found"])
    assert host.announced_plugins() == ["found"]


@pytest.mark.end_to_end
@pytest.mark.parametrize("arguments", [["--help"], ["tflite2onnx", "--help"], ["check", "--help"], []])
def test_help_shows_all_commands_and_the_options_of_the_called_one(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "qconvert", *arguments], capture_output=True, text=True, check=False)
    shown = done.stdout + done.stderr
    if "tflite2onnx" in arguments:
        assert "--io-layout" in shown and "--from" not in shown
    elif "check" in arguments:
        assert "--per-op" in shown
    else:
        for text in (
            "Convert a model to another format; suffixes say which",
            "List the formats, the targets and",
        ):
            assert text in shown
