"""Damaged and hostile files: refused with the file and the layer, never a fault."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from qconvert.plugin import InvalidModelError, QConvertError, UnsupportedError, convert, load

TRIES = int(os.environ.get("QCONVERT_EXAMPLES", "400"))
HEAD = "7767517\n2 2\nInput x 0 1 x 0=4 1=4 2=3\n"


@pytest.mark.parametrize(
    "name", ["tiny_resnet_cifar10_int8.tflite", "onnx/torch_pt2e_x86_attention.onnx", "mww_okay_nabu_streaming_int8.tflite"]
)
def test_mutated_files_are_read_or_refused(name: str, fixtures: Path, tmp_path: Path) -> None:
    convert(fixtures / name, tmp_path / "net.param")
    text, data = (tmp_path / "net.param").read_text(), (tmp_path / "net.bin").read_bytes()
    rng, outcomes = random.Random(7), {True: 0, False: 0}
    for _ in range(TRIES):
        (tmp_path / "net.param").write_text(_mutated_text(text, rng), encoding="utf-8")
        (tmp_path / "net.bin").write_bytes(_mutated_bytes(data, rng))
        try:
            load(tmp_path / "net.param")
            outcomes[True] += 1
        except QConvertError as error:
            assert "net." in error.file
            outcomes[False] += 1
    assert min(outcomes.values()) > 0


def _mutated_text(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    for _ in range(rng.choice((0, 1, 1, 2))):
        place = rng.randrange(len(lines))
        words = lines[place].split(" ")
        change = rng.randrange(5)
        if change == 0:
            del lines[place]
        elif change == 1:
            lines.insert(place, rng.choice(lines))
        elif change == 2:
            words[rng.randrange(len(words))] = rng.choice(
                ("-1", "0", "99999999999", "1e39", "nan", "6=-5", "-23310=9,1", "x", "8=101", "1=0")
            )
        elif change == 3:
            at = rng.randrange(len(words))
            key, _, _ = words[at].partition("=")
            words[at] = f"{key}={rng.choice(('-7', '0', '2147483648', '0.5', '1,2,3', ''))}"
        else:
            words.pop(rng.randrange(len(words)))
        if change > 1:
            lines[place] = " ".join(words)
    return "\n".join(lines)


def _mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    change = rng.randrange(4)
    at = rng.randrange(len(data))
    if change == 0:
        return data[:at]
    if change == 1:
        return data[:at] + rng.randbytes(4) + data[at + 4 :]
    return data if change == 2 else data[:at] + data[at : at + 64] + data[at:]


@pytest.mark.parametrize(
    ("text", "rule", "named"),
    [
        ("", "empty-file", ""),
        ("7767517\n", "not-this-format", ""),
        ("85\n1 1\n", "not-this-format", "7767517"),
        ("7767517\n9 9\nInput x 0 1 x 0=4\n", "counts-differ", "9 layers"),
        (HEAD + "ReLU y 1 1 nowhere y\n", "unknown-blob", "'nowhere'"),
        (HEAD + "ReLU y 1 1 x x\n", "duplicate-name", "'x'"),
        (HEAD + "ReLU y 1 99 x y\n", "counts-differ", "1 and 99 blobs"),
        (HEAD + "Convolution y 1 1 x y 0=8 1=3 6=216\n", "file-too-short", "net.bin"),
        (HEAD + "Convolution y 1 1 x y 0=99999999999 1=3 6=216\n", "not-a-count", "99999997952"),
        (HEAD + "Permute y 1 1 x y 0=77\n", "not-a-permutation", "77"),
        (HEAD + "Softmax y 1 1 x y 0=9 1=1\n", "axis-out-of-range", "9"),
        (HEAD + "Reshape y 1 1 x y 0=-1 1=-1\n", "sizes-do-not-fit", "-1"),
        (HEAD + "ReLU y 1 1 x y 0=1,2\n", "not-a-number", "parameter 0"),
        (HEAD + "ReLU y 1 1 x y 77=1\n", "unknown-parameter", "0 to 31"),
        (HEAD + "Reshape y 1 1 x y 0=5\n", "shape-mismatch", "5"),
        (HEAD + "LayerNorm y 1 1 x y 0=2000000000 2=0\n", "too-many-elements", "2000000000"),
        (HEAD + "InstanceNorm y 1 1 x y 0=2000000000 2=0\n", "too-many-elements", "2000000000"),
    ],
)
def test_what_is_wrong_is_said(text: str, rule: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "net.param").write_text(text)
    with pytest.raises(QConvertError) as caught:
        load(tmp_path / "net.param")
    assert caught.value.rule == rule and named in caught.value.reason and "net." in caught.value.file


def test_layers_that_are_not_covered_are_counted(tmp_path: Path) -> None:
    (tmp_path / "net.param").write_text(
        "7767517\n4 4\nInput x 0 1 x 0=4\nLSTM a 1 1 x a\nLSTM b 1 1 a b\nYolov3DetectionOutput c 1 1 b c\n"
    )
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path / "net.param")
    assert caught.value.rule == "operators-not-covered" and "2 LSTM, 1 Yolov3DetectionOutput" in caught.value.reason


def test_a_layer_of_the_reader_itself_is_not_covered(tmp_path: Path) -> None:
    (tmp_path / "net.param").write_text("7767517\n2 2\nInput x 0 1 x 0=4\nqconvert.Rounding y 1 1 x y 1=5.0 2=-5.0 3=0.0\n")
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path / "net.param")
    assert caught.value.rule == "operators-not-covered"


def test_roundings_that_share_a_layer_are_read(tmp_path: Path) -> None:
    """The product that ends one rounding has the factor that begins another."""
    middle = ["UnaryOp r{0} 1 1 a{0} b{0} 0=18", "Clip c{0} 1 1 b{0} c{0} 0=-127.0 1=127.0", "BinaryOp m{0} 1 1 c{0} a{1} 0=2 1=1 2=1.0"]
    lines = [line.format(place, place + 1) for place in range(2) for line in middle]
    lines = ["Input x 0 1 x 0=4", "BinaryOp m 1 1 x a0 0=2 1=1 2=1.0", *lines]
    (tmp_path / "net.param").write_text("\n".join(["7767517", f"{len(lines)} {len(lines)}", *lines, ""]))
    assert [op.kind for op in load(tmp_path / "net.param")] == ["Quantize", "Dequantize", "Round", "Clip", "Mul"]


def test_a_size_of_0_is_1_where_the_blob_has_fewer_dimensions(tmp_path: Path) -> None:
    (tmp_path / "net.param").write_text("7767517\n2 2\nInput x 0 1 x 0=10\nReshape y 1 1 x y 0=-1 1=0\n")
    assert load(tmp_path / "net.param")["y"].shape == (1, 1, 10)


def test_an_input_without_sizes_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "net.param").write_text("7767517\n2 2\nInput x 0 1 x\nReLU y 1 1 x y\n")
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path / "net.param")
    assert caught.value.rule == "shape-not-stated" and "0=width" in caught.value.remedy


def test_bytes_behind_the_last_layer_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "net.param").write_text("7767517\n2 2\nInput x 0 1 x 0=4\nReLU y 1 1 x y\n")
    (tmp_path / "net.bin").write_bytes(b"12345678")
    with pytest.raises(InvalidModelError) as caught:
        load(tmp_path / "net.param")
    assert caught.value.rule == "trailing-bytes" and "8 bytes" in caught.value.reason


def test_negative_sizes_of_a_constant_are_refused(tmp_path: Path) -> None:
    """Two of them make as many elements as the file has, one."""
    (tmp_path / "net.param").write_text(HEAD + "MemoryData y 0 1 y 0=-1 1=-1\n")
    (tmp_path / "net.bin").write_bytes(bytes(4))
    with pytest.raises(InvalidModelError) as caught:
        load(tmp_path / "net.param")
    assert caught.value.rule == "counts-differ" and "(1, -1, -1)" in caught.value.reason


def test_notes_that_do_not_fit_are_not_believed(fixtures: Path, tmp_path: Path) -> None:
    """A quantization next to another scale, or names that are none, change no value."""
    convert(fixtures / "tiny_resnet_cifar10_int8.tflite", tmp_path / "net.param")
    data = (tmp_path / "net.bin").read_bytes()
    weights, _, _ = data.partition(b"qconvert:")
    (tmp_path / "net.bin").write_bytes(weights)
    plain = load(tmp_path / "net.param")
    hostile = (
        b'qconvert:{"quantizations": {"%s": ["a", "int8", "0x1p+900", 5, null, "x"], "y": 7}, "names": {"x": 3, "y": ""}, "metadata": [1]}'
    )
    (tmp_path / "net.bin").write_bytes(weights + hostile)
    assert [op.kind for op in load(tmp_path / "net.param")] == [op.kind for op in plain]
