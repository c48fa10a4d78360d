"""Commands on files that are none: exit code 2 and one clear error, no traceback, nothing left behind, and no waiting."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
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
    "roundtrip": ["roundtrip", "BAD", "qgraph"],
    "inspect": ["inspect", "BAD"],
    "inspect --json": ["inspect", "BAD", "--json"],
    "apply SCALES": ["apply", "float.onnx", "BAD", "-o", "OUT.onnx"],
    "calibrate": ["calibrate", "BAD", "--data", "data.npy", "-o", "OUT.onnx"],
}
_WRITTEN = (".html", ".svg", ".json", ".onnx", "")
_CALIBRATE = ["calibrate", "float.onnx", "-o", "OUT.onnx"]
_ACCURACY = ["accuracy", "float.onnx", "float.onnx", "--data"]
#: Further commands: the suffix of what each takes, the command, and files of writing_wrongly() that are damaged where it looks.
FURTHER: dict[str, tuple[str, list[str], list[str]]] = {
    "check a graph": (".qgraph", ["check", "BAD", "m.onnx"], []),
    "check by a graph": (".qgraph", ["check", "m.tflite", "BAD"], []),
    "check --labels": (".csv", [*_ACCURACY, "inputs", "--labels", "BAD"], ["outside.csv"]),
    "check --labels of arrays": (".npz", [*_ACCURACY, "data.npy", "--labels", "BAD"], ["locked.npz", "none.npz"]),
    "check --labels --data": ("", [*_ACCURACY, "BAD"], ["emptied"]),
    "check --class-names": (".txt", [*_ACCURACY, "inputs", "--labels", "labels.csv", "--class-names", "BAD"], ["utf16.csv"]),
    "audit of a graph": (".qgraph", ["audit", "BAD", "--target", "ort-x86"], []),
    "roundtrip --keep": (".qgraph", ["roundtrip", "BAD", "onnx", "--keep", "OUT"], []),
    "diff BEFORE": (".onnx", ["diff", "BAD", "m.onnx"], []),
    "diff AFTER": (".onnx", ["diff", "m.onnx", "BAD"], []),
    "apply MODEL": (".onnx", ["apply", "BAD", "scales.json", "-o", "OUT.onnx"], []),
    "extract": (".tflite", ["extract-scales", "BAD", "OUT.json", "--float", "OUT.onnx"], []),
    "calibrate --data": (".npy", [*_CALIBRATE, "--data", "BAD"], ["object.npy", "nan.npy", "none.npy", "deep.npy", "over.npy"]),
    "calibrate --data of archives": (
        ".npz", [*_CALIBRATE, "--data", "BAD"], ["locked.npz", "object.npz", "named.npz", "text.npz", "huge.npz"],
    ),
    "calibrate --data of images": (".png", ["calibrate", "image.onnx", "--data", "BAD", "-o", "OUT.json"], ["bomb.png"]),
    "calibrate --mnn-config": (".json", [*_CALIBRATE, "--mnn-config", "BAD"], ["deep.json", "twice.json", "large.json"]),
    "batch": ("", ["batch", "BAD", "OUT"], ["emptied"]),
    "view": (".tflite", ["view", "BAD", "OUT.html"], []),
    "view of scales": (".mnn", ["view", "BAD", "OUT.html"], []),
    "view --data": (".npy", ["view", "m.tflite", "OUT.html", "--data", "BAD"], ["other.npy"]),
    "partition": (".qgraph", ["partition", "BAD", "OUT.qgraph", "--target", "tflite", "--split", "OUT"], []),
    "passes": (".onnx", ["passes", "BAD"], []),
    "passes --data": (".npy", ["passes", "m.tflite", "--data", "BAD"], ["none.npy"]),
    "--config": (".toml", ["--config", "BAD", "inspect", "m.tflite"], []),
    "--plugin": (".py", ["--plugin", "BAD", "formats"], []),
}  # fmt: skip
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
    from qconvert.conversion.encodings import extract_file

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
    (path / "models").mkdir()
    shutil.copy(MODEL, path / "models")
    (path / "inputs").mkdir()
    for number in range(2):
        np.save(path / "inputs" / f"{number}.npy", np.zeros((1, 640), np.float32))
    (path / "labels.csv").write_text("0.npy,1\n1.npy,2\n")
    qconvert.save(of_images(), path / "image.onnx")
    (path / "wrong").mkdir()
    writing_wrongly(path / "wrong", path / "labels.csv")
    kinds = path / "kinds"
    kinds.mkdir()
    for suffix in {*(suffix for suffix, _, _ in FURTHER.values()), *_WRITTEN}:
        (kinds / f"two\nforged{suffix}").write_bytes(rng.bytes(300))
        (kinds / f"round{suffix}").symlink_to(kinds / f"round{suffix}")
        os.mkfifo(kinds / f"pipe{suffix}")
    return path


def of_images() -> qconvert.Graph:
    """A network that takes images."""
    tensors = {name: qconvert.Tensor(name, "float32", (1, 3, 8, 8)) for name in ("x", "y")}
    return qconvert.Graph("g", tensors, (qconvert.Op("Relu", ("x",), ("y",)),), ("x",), ("y",))


def writing_wrongly(folder: Path, labels: Path) -> None:
    """Files that are what their suffix says, but for one thing."""

    def header(shape: str) -> bytes:
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text

    (folder / "emptied").mkdir()
    (folder / "outside.csv").write_text("0.npy,640\n1.npy,-1\n")
    (folder / "utf16.csv").write_text(labels.read_text(), encoding="utf-16")
    np.savez(folder / "locked.npz", x=np.zeros(2, np.int64))
    content = bytearray((folder / "locked.npz").read_bytes())
    content[6] |= 1
    content[content.find(b"PK\x01\x02") + 8] |= 1  # a member is encrypted, as both of its headers say
    (folder / "locked.npz").write_bytes(content)
    np.savez(folder / "object.npz", x=np.array([{}], object))
    np.savez(folder / "none.npz")
    np.savez(folder / "named.npz", **{"a\x1b[31m": np.zeros((2, 640), np.float32), "b\nforged": np.zeros(2)})
    with zipfile.ZipFile(folder / "text.npz", "w") as archive:
        archive.writestr("x.txt", b"nothing")
    with zipfile.ZipFile(folder / "huge.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w", force_zip64=True) as member:
        member.write(header("(100_000_000_000,)".replace("_", "")) + bytes(10_000))
    np.save(folder / "object.npy", np.array([{}], object))
    np.save(folder / "nan.npy", np.full((2, 640), np.nan, np.float32))
    np.save(folder / "other.npy", np.zeros((3, 7), np.float32))
    np.save(folder / "none.npy", np.zeros((0, 640), np.float32))
    (folder / "deep.npy").write_bytes(header("(" * 5000))
    (folder / "over.npy").write_bytes(header("(9223372036854775807, 9223372036854775807)"))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    bomb = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    (folder / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bomb + chunk(b"IEND", b""))
    (folder / "deep.json").write_text('{"path":' + "[" * 100_000)
    (folder / "twice.json").write_text('{"path": "inputs", "path": "inputs"}')
    (folder / "large.json").write_text('{"path": "inputs", "used_sample_num": ' + "9" * 40 + "}")


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[list[bytes]], str]]:
    """Runs a command with OUT for a place in an empty folder, and says what is wrong with how it ends, or ""."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-c", _RUNNER]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=environment) as runner:
        assert runner.stdin is not None and runner.stdout is not None

        def called(words: list[bytes]) -> str:
            assert runner.stdin is not None and runner.stdout is not None
            place = tmp_path_factory.mktemp("out")
            said = place.with_suffix(".txt")
            given = [word.replace(b"OUT", os.fsencode(place / "out")) for word in words]
            runner.stdin.write(json.dumps([[word.hex() for word in given], str(said)]).encode() + b"\n")
            runner.stdin.flush()
            code, text = int(runner.stdout.readline()), said.read_text(errors="replace")
            left = [item.name for item in place.iterdir()]
            is_plain = all(character.isprintable() or character == "\n" for character in text)
            forged = [line for line in text.splitlines() if line.startswith("forged")]
            if code == 2 and text.strip() and is_plain and not forged and not left and "Traceback" not in text and "Warning" not in text:
                return ""
            return f"{words[-1][-40:]!r}: {code} {text[-300:]!r} {left}"

        yield called


def _assert_all(command: list[str], names: list[bytes], run: Callable[[list[bytes]], str]) -> None:
    wrong = [run([name if word == "BAD" else os.fsencode(word) for word in command]) for name in names]
    assert not any(wrong), "\n".join(f"{name[-60:]!r} {text}" for name, text in zip(names, wrong, strict=True) if text)


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_file_is_one_error(command: str, folder: Path, run: Callable[[list[bytes]], str]) -> None:
    every = command in ("convert", "inspect")  # the others try every other file, in turn
    names = [os.fsencode(path) for path in sorted((folder / "bad").iterdir()) if every or path.suffix in (*_USUAL, _FURTHER.get(command))]
    names += [
        os.fsencode(folder / "bad" / name) for name in ("missing.tflite", "missing.onnx", "x" * 300 + ".tflite", "m.tflite/deep.onnx")
    ]
    place = [*COMMANDS].index(command)
    _assert_all(COMMANDS[command], names if every else names[place % 2 :: 2], run)


#: Places that take no file; BAD stands for one of them.
RESULTS = {
    "a name too long": "x" * 300,
    "a device": "/dev/null",
    "a link to itself": "kinds/round",
}
WRITING = {
    "convert": ["convert", "m.tflite", "BAD.onnx"],
    "convert --html": ["convert", "m.tflite", "OUT.onnx", "--html", "BAD.html"],
    "view": ["view", "m.tflite", "BAD.html"],
    "view --model-explorer": ["view", "m.tflite", "--model-explorer", "BAD.json"],
    "extract --float": ["extract-scales", "m.tflite", "OUT.json", "--float", "BAD.onnx"],
    "partition --split": ["partition", "m.tflite", "--target", "tflite", "--split", "BAD"],
    "roundtrip --keep": ["roundtrip", "m.tflite", "qgraph", "--keep", "BAD"],
    "batch": ["batch", "models", "BAD"],
    "plugin new": ["plugin", "new", "chip", "--in", "BAD"],
}


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", WRITING)
def test_a_place_that_takes_no_file_is_one_error(command: str, folder: Path, run: Callable[[list[bytes]], str]) -> None:
    words = WRITING[command]
    suffix = next(word.removeprefix("BAD") for word in words if word.startswith("BAD"))
    names = [str(folder / name) + suffix for what, name in RESULTS.items() if not (suffix and what == "a device")]
    _assert_all([word if not word.startswith("BAD") else "BAD" for word in words], [name.encode() for name in names], run)


@pytest.mark.end_to_end
@pytest.mark.parametrize("command", FURTHER)
def test_a_file_that_is_wrong_in_one_place_is_one_error(command: str, folder: Path, run: Callable[[list[bytes]], str]) -> None:
    suffix, words, special = FURTHER[command]
    places = [folder / "kinds" / f"{name}{suffix}" for name in ("pipe", "round", "two\nforged", "x" * 300)]
    _assert_all(words, [os.fsencode(path) for path in (*places, *(folder / "wrong" / name for name in special))], run)
