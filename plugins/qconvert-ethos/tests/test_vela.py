"""Vela's process, what is made of what it says, and the passes of the targets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from qconvert_ethos import vela
from qconvert_ethos.vela import compile_file

import qconvert
from qconvert import audit
from qconvert.plugin import Graph, Op, Quantization, RuntimeRefusedError, Tensor, evaluate, load, run_passes, tflite_operators
from qconvert.testing import assert_exact, assert_target_takes, random_inputs


def test_estimates_and_reasons_are_told(fixtures: Path) -> None:
    report = audit(fixtures / "coco_ssd_mobilenet_v1_uint8.tflite", "ethos-u55", run=True, kernels="ethos-u55:256")
    first, *others = report.notes
    assert "for Ethos-U55-256: " in first and " cycles, " in first and "SRAM " in first
    assert others == ["Vela leaves 2 DEQUANTIZE to the CPU: Unsupported opType", "Vela leaves 1 CUSTOM to the CPU: Unsupported opType"]
    assert report.sentence.endswith("75 of 78 operators run on Ethos-U55, the others on the CPU; Vela places 78 of 78 as predicted.")


def test_more_macs_take_fewer_cycles(fixtures: Path) -> None:
    file = fixtures / "tiny_vww_mobilenet_int8.tflite"
    cycles = [compile_file(file, f"ethos-u55-{size}").estimates["cycles_total"] for size in (32, 64, 128, 256)]
    assert cycles == sorted(cycles, reverse=True) and cycles[0] > 2 * cycles[3]


def test_floats_at_the_edges_are_quantized_first(fixtures: Path, tmp_path: Path) -> None:
    source = fixtures / "onnx" / "torch_mobilenet_v2_qdq.onnx"
    files = {target: tmp_path / f"{target}.tflite" for target in ("tflite-micro", "ethos-u55")}
    for target, file in files.items():
        qconvert.convert(source, file, target=target, batch=1)
    first = {target: [op.name for op in tflite_operators(file)][:2] for target, file in files.items()}
    assert first == {"tflite-micro": ["TRANSPOSE", "QUANTIZE"], "ethos-u55": ["QUANTIZE", "TRANSPOSE"]}
    given = random_inputs(load(files["ethos-u55"]))
    outputs = [next(iter(evaluate(load(file), given).values())) for file in files.values()]
    np.testing.assert_array_equal(*outputs)


def edges(kind: str) -> Graph:
    """A Quantize after a Transpose and a Reshape, or a Dequantize before them."""
    q = Quantization.per_tensor(0.05, 3)
    shapes = (2, 3, 4), (4, 3, 2), (12, 2)
    moves = Op("Transpose", ("a",), ("b",), {"perm": (2, 1, 0)}), Op("Reshape", ("b", "sizes"), ("c",), {})
    if kind == "Quantize":
        ops, first, last = (*moves, Op("Quantize", ("c",), ("y",), {})), "a", "y"
    else:
        ops, first, last = (Op("Dequantize", ("y",), ("a",), {}), *moves), "y", "c"
    tensors = [Tensor(name, "float32", shape) for name, shape in zip("abc", shapes, strict=True)]
    tensors.append(Tensor("y", "int8", shapes[2] if kind == "Quantize" else shapes[0], None, q))
    tensors.append(Tensor("sizes", "int64", (2,), np.array([12, 2], np.int64)))
    return Graph(kind, {tensor.name: tensor for tensor in tensors}, ops, (first,), (last,))


@pytest.mark.parametrize("kind", ["Quantize", "Dequantize"])
def test_quantize_first_is_exact(kind: str) -> None:
    assert_exact("quantize_first", [edges(kind)])
    found, _ = run_passes(edges(kind), ["quantize_first"])
    wanted = ["Quantize", "Transpose", "Reshape"] if kind == "Quantize" else ["Transpose", "Reshape", "Dequantize"]
    assert [op.kind for op in found.ops] == wanted


@pytest.mark.parametrize("family", ["ethos-u55", "ethos-u65", "ethos-u85"])
def test_targets_take_the_sample_graphs(family: str) -> None:
    assert_target_takes(family)


def test_it_runs_nothing(fixtures: Path) -> None:
    report = qconvert.check(*(fixtures / "tiny_kws_dscnn_int8.tflite",) * 2, kernels="ethos-u55")
    assert not report.passed and not report.problems and "runs none" in report.sentence


def test_a_damaged_file_ends_in_an_error_of_one_line(tmp_path: Path, fixtures: Path) -> None:
    (tmp_path / "bad.tflite").write_bytes((fixtures / "tiny_kws_dscnn_int8.tflite").read_bytes()[:20_000])
    with pytest.raises(qconvert.QConvertError) as caught:
        compile_file(tmp_path / "bad.tflite", "ethos-u55-128")
    assert "\n" not in caught.value.reason and len(caught.value.reason) < 1000


def test_one_that_takes_too_long_is_ended(fixtures: Path) -> None:
    with pytest.raises(RuntimeRefusedError, match="took longer than 0 s"):
        compile_file(fixtures / "coral_mobilenet_v2_224_uint8.tflite", "ethos-u55-128", patience=0.01)


@pytest.mark.parametrize(
    ("row", "found"),
    [(b"\xff,12.5", {"sram_memory_used": 12.5}), (b"inf,nan", {}), (b"9" * 200_000, {}), (b"\0", {}), (b'"', {})],
)
def test_a_summary_that_is_no_table_gives_no_numbers(row: bytes, found: dict[str, float], tmp_path: Path) -> None:
    (tmp_path / "m_summary_x.csv").write_bytes(b"cycles_total,sram_memory_used\n" + row + b"\n")
    assert vela._read_summary(tmp_path) == found


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("while True: os.write(1, b'Error: x\\n' * 2**12)", "printed more than 4,194,304 bytes"),
        ("os.write(1, b'Error: ' + b'y' * 10**6); os._exit(3)", "ended with exit code 3. It printed: Error: y"),
        ("os.abort()", "was ended by signal 6"),
        ("pass", "wrote no readable file"),
        ("os.mkfifo(sys.argv[-1] + '/m_vela.tflite')", "wrote no readable file"),
    ],
)
def test_another_program_in_the_place_of_vela(program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ethosu").mkdir()
    (tmp_path / "ethosu" / "vela.py").write_text(f"import os, sys\n{program}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeRefusedError, match=words) as caught:
        compile_file(tmp_path / "m.tflite", "ethos-u55-128")
    assert len(caught.value.reason) < 500 and [path.name for path in tmp_path.iterdir()] == ["ethosu"]
