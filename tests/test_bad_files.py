"""Commands on files that are none: exit code 2 and one clear error, no traceback, nothing left behind, and no waiting."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qconvert

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "fixtures" / "tiny_ad_toycar_int8.tflite"
#: BAD stands for the file, OUT for a place in an empty folder.
COMMANDS = {
    "convert": ["convert", "BAD", "OUT.onnx"],
    "convert to a folder": ["convert", "BAD", "OUT", "--to", "mnn"],
    "convert --batch": ["convert", "BAD", "OUT.onnx", "--batch", "2", "--verify-each"],
    "convert --html": ["convert", "BAD", "OUT.onnx", "--html", "OUT.html"],
    "convert --dry-run": ["convert", "BAD", "OUT.onnx", "--dry-run"],
    "convert --from": ["convert", "BAD", "OUT.onnx", "--from", "onnx"],
    "convert --encodings": ["convert", "float.onnx", "OUT.onnx", "--encodings", "BAD"],
    "convert --graph": ["convert", "state.pth", "OUT.onnx", "--graph", "BAD"],
    "tflite2onnx": ["tflite2onnx", "BAD", "OUT.onnx"],
    "onnx2tflite": ["onnx2tflite", "BAD", "OUT.tflite"],
    "check SOURCE": ["check", "BAD", "m.onnx"],
    "check RESULT": ["check", "m.tflite", "BAD"],
    "check --html": ["check", "BAD", "m.onnx", "--html", "OUT.html"],
    "check --encodings": ["check", "float.onnx", "m.onnx", "--encodings", "BAD"],
    "check --data": ["check", "m.tflite", "m.onnx", "--data", "BAD"],
    "audit": ["audit", "BAD", "--target", "ort-x86"],
    "audit --run": ["audit", "BAD", "--target", "ort-x86", "--run"],
    "roundtrip": ["roundtrip", "BAD", "--via", "qgraph"],
    "inspect": ["inspect", "BAD"],
    "inspect --json": ["inspect", "BAD", "--json"],
    "apply SCALES": ["apply", "float.onnx", "BAD", "-o", "OUT.onnx"],
    "calibrate": ["calibrate", "BAD", "--data", "data.npy", "-o", "OUT.onnx"],
}
#: Of all commands but two, files of these suffixes are tried, and of some those that their option takes.
_USUAL = (".tflite", ".onnx", "")
_FURTHER = {"check --data": ".npy", "convert --encodings": ".json", "check --encodings": ".json", "apply SCALES": ".json"}
#: What runs the commands, each in a child of a process that has imported everything.
_RUNNER = """
import json, os, signal, sys
from pathlib import Path
import qconvert.checking.check, qconvert.calibration.driver, qconvert.reports.pages, onnx, onnxruntime
from qconvert.cli.app import main
for line in sys.stdin:
    words, said = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(60)
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        sys.stdin = open(os.devnull)
        sys.argv = ["qconvert", *(os.fsdecode(bytes.fromhex(word)) for word in words)]
        code = 99
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def _suffixes() -> list[str]:
    from qconvert.plugins import formats

    found = {suffix for item in formats().values() for suffix in (*item.suffixes, *item.encodings_suffixes)}
    return sorted({*found, ".npy", ".npz", ".txt", ".toml", ""})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound files, and in bad/ those that are none."""
    from qconvert.conversion.encoded import extract_file

    path = tmp_path_factory.mktemp("files")
    shutil.copy(MODEL, path / "m.tflite")
    shutil.copy(ROOT / "fixtures" / "torch" / "classifier" / "state_eager_fbgemm.pth", path / "state.pth")
    qconvert.convert(MODEL, path / "m.onnx")
    extract_file(MODEL, path / "scales.json", real=path / "float.onnx")
    np.save(path / "data.npy", np.zeros((2, 640), np.float32))
    bad, rng = path / "bad", np.random.default_rng(0)
    bad.mkdir()
    whole = {
        ".tflite": MODEL,
        ".onnx": path / "m.onnx",
        ".json": path / "scales.json",
        ".npy": path / "data.npy",
        ".pth": path / "state.pth",
    }
    for suffix in _suffixes():
        (bad / f"empty{suffix}").write_bytes(b"")
        (bad / f"random{suffix}").write_bytes(rng.bytes(300))
        (bad / f"folder{suffix}").mkdir()
        os.mkfifo(bad / f"pipe{suffix}")
    for suffix, source in whole.items():
        content = source.read_bytes()
        (bad / f"half{suffix}").write_bytes(content[: len(content) // 2])
    for name in (b"\xff\xfe.tflite", b"two\nlines.onnx", b"\x1b[31m.tflite"):
        (bad / os.fsdecode(name)).write_bytes(b"nothing")
    (bad / "nowhere.tflite").symlink_to(bad / "missing")
    (bad / "round.onnx").symlink_to(bad / "round.onnx")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_file_is_one_error(command: str, folder: Path, tmp_path: Path) -> None:
    every = command in ("convert", "inspect")
    names = [os.fsencode(path) for path in sorted((folder / "bad").iterdir()) if every or path.suffix in (*_USUAL, _FURTHER.get(command))]
    names += [
        os.fsencode(folder / "bad" / name) for name in ("missing.tflite", "missing.onnx", "x" * 300 + ".tflite", "m.tflite/deep.onnx")
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    wrong = []
    with subprocess.Popen(
        [sys.executable, "-c", _RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=environment
    ) as runner:
        assert runner.stdin is not None and runner.stdout is not None
        for number, name in enumerate(names):
            place, said = tmp_path / str(number), tmp_path / f"{number}.txt"
            place.mkdir()
            given = [name if word == "BAD" else os.fsencode(word).replace(b"OUT", os.fsencode(place / "out")) for word in COMMANDS[command]]
            runner.stdin.write(json.dumps([[word.hex() for word in given], str(said)]).encode() + b"\n")
            runner.stdin.flush()
            code, text = int(runner.stdout.readline()), said.read_text(errors="replace")
            if code != 2 or "Traceback" in text or not text.strip() or "\x1b" in text or any(place.iterdir()):
                wrong.append((os.fsdecode(name).rpartition("/")[2][-40:], code, text[-300:], [item.name for item in place.iterdir()]))
    assert not wrong, "\n".join(map(str, wrong))
