"""Bad input: one clear error, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from differential import converted
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from tflite_models import OpSpec, TensorSpec, model, single_op

from qconvert import convert
from qconvert.errors import InvalidModelError, QConvertError
from qconvert.formats.tflite.reader import read_bytes

FIXTURES = Path(__file__).parent.parent / "fixtures"
SOUND = FIXTURES / "tiny_kws_dscnn_int8.tflite"
EXTREMES = [0, 1, 2, 3, 4, 255, 0x7FC00000, 2**31 - 1, 2**31, 2**32 - 1, 12345]
SMALL = [path.read_bytes() for path in sorted(FIXTURES.glob("*.tflite")) if path.stat().st_size < 120_000]


def run(*arguments: str | Path, limit: int = 0) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own; `limit` is the largest file that it may write, in bytes."""
    bound = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))) if limit else None
    # Under a limit no bytecode is written (-B), of which Python 3.11 would keep what fits.
    command = [sys.executable, *["-B"] * bool(limit), "-m", "qconvert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=bound, timeout=60)


def assert_one_clear_error(done: subprocess.CompletedProcess[str], folder: Path, words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "Warning" not in done.stderr
    assert not [path for path in folder.iterdir() if path.name.endswith(".part") or path.name == "out.onnx"]


def graph_of(ops: list[OpSpec], tensors: list[TensorSpec]) -> bytes:
    return model(ops, tensors, ["x"], ["y"])


def tensor(name: str, *shape: int, scale: float = 0.1, **more: object) -> TensorSpec:
    return TensorSpec(name, shape, "int8", scale, 0, **more)  # type: ignore[arg-type]


def convolution(**weights: object) -> bytes:
    x, y = tensor("x", 1, 4, 4, 2), tensor("y", 1, 4, 4, 3)
    w = TensorSpec("w", (3, 1, 1, 2), "int8", data=np.ones((3, 1, 1, 2), np.int8), **weights)  # type: ignore[arg-type]
    bias = TensorSpec("b", (3,), "int32", 0.01, 0, data=np.zeros(3, np.int32))
    return single_op("CONV_2D", {"strideH": 1, "strideW": 1}, [x, w, bias], [y])


RELU = single_op("RELU", None, [tensor("x", 4)], [tensor("y", 4)])
UNORDERED = graph_of([OpSpec("RELU", ["m"], ["y"]), OpSpec("RELU", ["x"], ["m"])], [tensor(n, 4) for n in "xmy"])
CYCLE = graph_of([OpSpec("ADD", ["x", "y"], ["m"], {}), OpSpec("RELU", ["m"], ["y"])], [tensor(n, 4) for n in "xmy"])


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) >= 1
    return data.replace(old, new)


FILES = {
    "empty": (b"", "the file is empty"),
    "short": (b"TFL", "at least 8 bytes"),
    "truncated": (SOUND.read_bytes()[:20_000], "past the end of the file"),
    "random": (np.random.default_rng(0).bytes(10_000), "not a TFLite file"),
    "onnx": (b"\x08\x08\x12\x08qconvert" + bytes(50), "the file is of the format onnx, not tflite"),
    "zip": (b"PK\x03\x04" + bytes(50), "zip archive"),
    "unordered operators": (UNORDERED, "'m' before any operator has computed it; TFLite runs operators in the order of the file"),
    "cycle": (CYCLE, "before any operator has computed it"),
    "zero scale": (single_op("RELU", None, [tensor("x", 4, scale=0.0)], [tensor("y", 4)]), "scale"),
    "NaN scale": (single_op("RELU", None, [tensor("x", 4, scale=float("nan"))], [tensor("y", 4)]), "scale"),
    "tensor index": (patched(RELU, np.int32([1, 1]).tobytes(), np.int32([1, 77]).tobytes()), "tensor 77 of 2"),
    "negative size": (single_op("RELU", None, [tensor("x", -4)], [tensor("y", 4)]), "negative size"),
    "huge size": (single_op("RELU", None, [TensorSpec("x", (2**31 - 1,) * 3, "int8")], [tensor("y", 4)]), "more than 2^40 elements"),
    "float shape": (
        single_op("RESHAPE", {}, [tensor("x", 4), TensorSpec("s", (1,), "float32", data=np.float32([np.nan]))], [tensor("y", 4)]),
        "is float32, not integers",
    ),
    "infinite boundaries": (
        single_op("BUCKETIZE", {"boundaries": [np.inf, np.inf]}, [TensorSpec("x", (4,), "float32")], [TensorSpec("y", (4,), "int32")]),
        "boundaries that do not increase",
    ),
    "weights without a scale": (convolution(), "plain int8, which is neither quantized nor float"),
    "NaN scale of weights": (convolution(scale=[0.1, float("nan"), 0.1], zero_point=0), "not finite: [nan]"),
    "missing data": (
        single_op("RESHAPE", {}, [tensor("x", 4), TensorSpec("s", (0,), "int32", data=np.zeros(0, np.int32))], [tensor("y", 2, 3)]),
        "cannot be reshaped to []",
    ),
}  # fmt: skip


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", FILES)
def test_bad_file(name: str, tmp_path: Path) -> None:
    data, words = FILES[name]
    (tmp_path / "bad.tflite").write_bytes(data)
    done = run("tflite2onnx", tmp_path / "bad.tflite", tmp_path / "out.onnx")
    assert_one_clear_error(done, tmp_path, words)
    assert "bad.tflite" in done.stderr


@pytest.mark.formats
def test_constant_whose_buffer_is_too_small(tmp_path: Path) -> None:
    w = TensorSpec("w", (3, 4), "int8", 0.1, 0, data=np.ones((3, 4), np.int8))
    data = single_op("FULLY_CONNECTED", {}, [tensor("x", 1, 4), w, None], [tensor("y", 1, 3)])
    data = patched(data, np.int32([2, 3, 4]).tobytes(), np.int32([2, 3, 9]).tobytes())
    with refused(InvalidModelError, "buffer-too-short", holds=(27, 12)):
        read_bytes(data, "test")


@pytest.mark.formats
@pytest.mark.parametrize("name", ["tiny_kws_dscnn_int8", "tflm_seanet_conv_int16x8"])
def test_a_file_cut_off_anywhere_is_refused(name: str) -> None:
    data = (FIXTURES / f"{name}.tflite").read_bytes()
    lengths = [*range(200), *range(200, len(data), 89), *range(len(data) - 64, len(data))]
    for length in lengths:
        with pytest.raises(QConvertError):
            read_bytes(data[:length], "cut")


@pytest.mark.end_to_end
def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """Nobody writes into the pipe: reading it would wait. A rename would replace a device such as /dev/null by a file."""
    pipe, out = tmp_path / "pipe.tflite", tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    os.mkfifo(out)
    assert_one_clear_error(run("tflite2onnx", pipe, tmp_path / "out.onnx"), tmp_path, "is not a regular file")
    assert_one_clear_error(run("convert", SOUND, out, "--force"), tmp_path, "is not a regular file")
    assert pipe.is_fifo() and out.is_fifo()


@pytest.mark.formats
def test_nothing_is_written_by_the_api_either(tmp_path: Path) -> None:
    (tmp_path / "bad.tflite").write_bytes(SOUND.read_bytes()[:-1000])
    with pytest.raises(QConvertError) as caught:
        convert(tmp_path / "bad.tflite", tmp_path / "out.onnx")
    assert caught.value.file.endswith("bad.tflite")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tflite"]


@pytest.mark.end_to_end
def test_paths(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert_one_clear_error(run("tflite2onnx", tmp_path / "none.tflite", out), tmp_path, "No such file")
    assert_one_clear_error(run("tflite2onnx", tmp_path, out), tmp_path, "is a directory")
    assert_one_clear_error(run("tflite2onnx", SOUND, tmp_path / "none" / "out.onnx"), tmp_path, "cannot be written")
    assert_one_clear_error(run("convert", SOUND, tmp_path / "out.xyz"), tmp_path, "belongs to no known format")
    assert_one_clear_error(run("tflite2onnx", SOUND, out, "--target", "nonsense"), tmp_path, "ort-x86")
    assert_one_clear_error(run("tflite2onnx", SOUND, out, "--opset", "99"), tmp_path, "opset 99")


@pytest.mark.end_to_end
def test_an_existing_result_is_kept_without_force(tmp_path: Path) -> None:
    (tmp_path / "kept.onnx").write_text("precious")
    done = run("tflite2onnx", SOUND, tmp_path / "kept.onnx")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (tmp_path / "kept.onnx").read_text() == "precious"
    assert run("tflite2onnx", SOUND, tmp_path / "kept.onnx", "--force").returncode == 0
    assert (tmp_path / "kept.onnx").stat().st_size > 50_000


@pytest.mark.end_to_end
def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    assert_one_clear_error(run("tflite2onnx", SOUND, tmp_path / "out.onnx", limit=20_000), tmp_path, "cannot be written")


@pytest.mark.formats
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(tmp_path: Path) -> None:
    secret = tmp_path / "secret.tflite"
    secret.write_bytes(RELU)
    secret.chmod(0)
    assert_one_clear_error(run("tflite2onnx", secret, tmp_path / "out.onnx"), tmp_path, "Permission denied")


@pytest.mark.end_to_end
@pytest.mark.cross_section
def test_errors_as_json(tmp_path: Path) -> None:
    done = run("tflite2onnx", tmp_path / "none.tflite", tmp_path / "out.onnx", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["error"]) == (2, "file-access")
    assert found["file"].endswith("none.tflite")


@pytest.mark.end_to_end
def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run("tflite2onnx", tmp_path / "none.tflite", tmp_path / "out.onnx", "--debug")
    assert "Traceback" in done.stderr


MUTATIONS = {
    "which": st.integers(0, len(SMALL) - 1),
    "changes": st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from(EXTREMES)), min_size=1, max_size=6),
    "tail": st.booleans(),
}  # fmt: skip


def mutated(which: int, changes: list[tuple[float, int]], tail: bool) -> bytes:
    """Words of a real file set to extreme values, mostly in its structure, which stands at the end and the start."""
    data = bytearray(SMALL[which])
    span = min(len(data) - 4, 16_000)
    for place, value in changes:
        position = int(place * span) // 4 * 4
        position = len(data) - 4 - position if tail else position
        data[position : position + 4] = value.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.formats
@pytest.mark.property
@settings(max_examples=700)
@given(**MUTATIONS)
def test_mutated_models_become_valid_onnx_or_are_refused(which: int, changes: list[tuple[float, int]], tail: bool) -> None:
    try:
        converted(mutated(which, changes, tail))
    except QConvertError as error:
        assert str(error)


@pytest.mark.formats
@pytest.mark.property
@settings(max_examples=500)
@given(**MUTATIONS)
def test_mutated_models_are_read_or_refused(which: int, changes: list[tuple[float, int]], tail: bool) -> None:
    data = mutated(which, changes, tail)
    tracemalloc.start()
    try:
        read_bytes(data, "mutated")
    except QConvertError as error:
        assert str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 40 * len(data) + 4_000_000
