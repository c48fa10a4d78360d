"""Accuracy on labelled inputs: what is counted, its intervals, and labels of every form, hostile ones included."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import forked
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import model_of
from PIL import Image
from refusals import refused

import qconvert
from qconvert.checking.accuracy import Accuracy, Share
from qconvert.data.labels import class_names, read_labels
from qconvert.errors import FileAccessError, OptionError, QConvertError
from qconvert.graph import Graph, Op, Tensor

DIGITS = Path(__file__).parents[2] / "fixtures" / "digits"


def linear(path: Path, weights: np.ndarray, shape: tuple[int, ...] = (1, 4)) -> Path:
    """A network whose scores are a product."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights.astype(np.float32), "w")])
    onnx.save(model_of(graph), path)
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two networks of 4 numbers and 8 scores: the second takes class 0 for class 1, and 1 for 0."""
    own = np.eye(4, 8)
    return linear(tmp_path / "a.onnx", own), linear(tmp_path / "b.onnx", own[[1, 0, 2, 3]])


@pytest.mark.onnxruntime
@pytest.mark.cross_section
def test_what_is_counted(pair: tuple[Path, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 2, 0]])
    np.save(tmp_path / "labels.npy", np.array([0, 1, 2, 2, 2, 1]))
    found = qconvert.accuracy(*pair, tmp_path / "x.npy", tmp_path / "labels.npy")
    assert (found.top1[0].hits, found.top1[1].hits, found.gained, found.lost) == (4, 3, 1, 2)
    assert found.output == "y" and found.top5 is not None and [item.hits for item in found.top5] == [6, 6]
    assert [(item.where.rpartition("/")[2], item.label, item.before, item.after) for item in found.changed] == [
        ("x.npy[0]", 0, 0, 1), ("x.npy[1]", 1, 1, 0), ("x.npy[5]", 1, 0, 1),
    ]  # fmt: skip
    assert found.difference == pytest.approx(-1 / 6) and found.interval[0] < -1 / 6 < found.interval[1]
    other = qconvert.accuracy(*pair, tmp_path / "x.npy", tmp_path / "labels.npy", label_offset=1, samples=2)
    assert other.top1[0] == Share(0, 2) and other.changed[0].before == -1  # as labels count, where class 0 is the background


@pytest.mark.formats
def test_intervals_are_those_of_the_papers() -> None:
    """Wilson's of 81 of 263 is 0.2553 to 0.3662 (R. G. Newcombe, Two-sided confidence intervals for the single proportion, 1998)."""
    assert Share(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert Share(0, 20).interval == pytest.approx((0, 0.1611), abs=5e-5) and Share(20, 20).interval[1] == 1
    same = Accuracy("a", "b", "y", ("r", "r"), (Share(90, 100), Share(90, 100)), None, 0, 0, ())
    low, high = same.interval
    assert low == pytest.approx(-high) and 0.015 < high < 0.025


@pytest.mark.onnxruntime
@pytest.mark.litert
def test_a_real_network_of_photographs(tmp_path: Path) -> None:
    qconvert.convert(DIGITS / "fx.onnx", tmp_path / "fx.tflite")
    data = np.load(DIGITS / "test.npz")
    for index in range(30):
        folder = tmp_path / "images" / str(data["labels"][index])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data["images"][index, 0] * 255).astype(np.uint8)).save(folder / f"{index}.png")
    preparation = qconvert.Preparation(pixel_range=(0, 1))
    found = qconvert.accuracy(DIGITS / "fx.onnx", tmp_path / "fx.tflite", tmp_path / "images", preparation=preparation)
    (tmp_path / "images" / "5").rename(tmp_path / "images" / "five")
    with refused(OptionError, "class-count", holds=(9, "logits", 10)):  # no image shows a 0
        qconvert.accuracy(DIGITS / "fx.onnx", tmp_path / "fx.tflite", tmp_path / "images", preparation=preparation)
    assert found.top1[0].total == 30 and found.top1[0].hits >= 28 and found.changed == ()
    array = np.concatenate([data["images"][:30]])
    np.save(tmp_path / "x.npy", array)
    again = qconvert.accuracy(DIGITS / "fx.onnx", tmp_path / "fx.tflite", tmp_path / "x.npy", DIGITS / "test.npz", samples=30)
    assert abs(again.top1[0].hits - found.top1[0].hits) <= 1


LISTS = {
    "comma": "a.npy,1\nsub/b.npy,0\n",
    "head": "file,label\na.npy,1\nsub/b.npy,0\n",
    "blanks": "a.npy 1\n\nsub/b.npy 0\n",
    "quotes": '\ufeff"a.npy";"1"\n"sub/b.npy";"0"\n',
    "names": "a.npy,dog\nsub/b.npy,cat\n",
}


@pytest.mark.formats
@pytest.mark.parametrize("form", LISTS)
def test_lists_of_labels(form: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.npy", "sub/b.npy"):
        np.save(tmp_path / name, np.zeros((1, 4), np.float32))
    (tmp_path / "labels.csv").write_text(LISTS[form], encoding="utf-8")
    found = read_labels(tmp_path, tmp_path / "labels.csv", ("cat", "dog"))
    assert [file.name for file in found.files] == ["a.npy", "b.npy"] and found.labels == (1, 0)


BAD: dict[str, tuple[str, type[QConvertError], str, tuple[object, ...]]] = {
    "outside": ("../secret.npy,1", OptionError, "file-outside", ("../secret.npy",)),
    "absolute": ("/etc/passwd,1", OptionError, "file-outside", ("/etc/passwd",)),
    "missing": ("none.npy,1", FileAccessError, "file-not-found", ("none.npy", ".csv:1")),
    "twice": ("a.npy,1\n./a.npy,1", OptionError, "file-twice", ("'./a.npy'", "line 1")),
    "no number": ("a.npy,1\nb.npy,=cmd()", OptionError, "unknown-class", ("'=cmd()'", ".csv:2")),
    "huge number": ("a.npy,99999999999999999999", OptionError, "unknown-class", ("99999999999999999999",)),
    "cells": ("a.npy,1,2", OptionError, "cell-count", (3,)),
    "empty": ("\n \n", OptionError, "empty-file", ()),
    "too many": ("1\n2\n3\n", OptionError, "label-count", (3,)),
    "quote": ('"a.npy,1\n' * 2, FileAccessError, "file-not-found", ()),
    "code 0": ("a.npy,1\n\0,2\n", OptionError, "not-text", ()),
    "a name too long": (f"{'x' * 300}.npy,1\n", FileAccessError, "file-not-found", ()),
    "two signs": ("a.npy,--1\n", OptionError, "unknown-class", ("'--1'",)),
    "no digit of ours": ("a.npy,\u00b2\n", OptionError, "unknown-class", ("\u00b2",)),
}


@pytest.mark.formats
@pytest.mark.parametrize("form", BAD)
def test_bad_lists_are_one_error(form: str, tmp_path: Path) -> None:
    text, kind, rule, named = BAD[form]
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a.npy", "b.npy"):
        np.save(folder / name, np.zeros((1, 4), np.float32))
    np.save(tmp_path / "secret.npy", np.zeros((1, 4), np.float32))
    (tmp_path / "labels.csv").write_text(text)
    with refused(kind, rule, holds=named):
        read_labels(folder, tmp_path / "labels.csv")


@pytest.mark.onnxruntime
def test_other_bad_labels(pair: tuple[Path, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    for labels, rule, named in (
        (np.array([0, 8]), "label-out-of-range", (8,)),
        (np.array([0.5, 1]), "not-a-row", ("float64",)),
        (np.zeros(3, int), "label-count", (3, 2)),
    ):
        np.save(tmp_path / "labels.npy", labels)
        with refused(OptionError, rule, holds=named):
            qconvert.accuracy(*pair, tmp_path / "x.npy", tmp_path / "labels.npy")
    (tmp_path / "labels.npy").write_bytes(b"\x93NUMPY but no more")
    with refused(FileAccessError, "not-readable"):
        read_labels(tmp_path / "x.npy", tmp_path / "labels.npy")
    with refused(FileAccessError, "not-text", holds=("UTF-8",)):
        (tmp_path / "labels.txt").write_bytes(b"\xff\xfe\x00")
        read_labels(tmp_path, tmp_path / "labels.txt")
    (tmp_path / "names.txt").write_text("cat\ncat\n")
    with refused(OptionError, "class-twice"):
        class_names(tmp_path / "names.txt")
    (tmp_path / "classes" / "cat").mkdir(parents=True)
    with refused(OptionError, "class-without-input"):
        read_labels(tmp_path / "classes")
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(1 << 30)
    with refused(OptionError, "file-too-large"):
        read_labels(tmp_path, tmp_path / "large.csv")


@pytest.mark.end_to_end
def test_the_command(pair: tuple[Path, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32))
    np.save(tmp_path / "labels.npy", np.arange(4))
    (tmp_path / "names.txt").write_text("cat\ndog\n")

    def run(*words: Any) -> subprocess.CompletedProcess[str]:
        given = ("--data", tmp_path / "x.npy", "--labels", tmp_path / "labels.npy", *words)
        return forked.run(["accuracy", *pair, *given])

    done = run("--class-names", tmp_path / "names.txt")
    assert done.returncode == 1 and "100.00%" in done.stdout and "0 inputs gained, 2 lost, 2 changed class" in done.stdout
    assert "cat" in done.stdout
    done = run("--json", "--max-drop", "50")
    assert done.returncode == 0 and json.loads(done.stdout)["top1"][1]["hits"] == 2
    assert run("--max-drop", "49").returncode == 1


@pytest.mark.onnxruntime
def test_labels_beside_the_inputs_of_one_file(tmp_path: Path) -> None:
    """An .npz file of images and labels needs no other word: the model has one input, which is the other array."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "test.npz", images=rng.normal(size=(4, 3)).astype(np.float32), labels=np.array([2, 0, 1, 1]))
    assert read_labels(tmp_path / "test.npz").labels == (2, 0, 1, 1)
    x, y = Tensor("x", "float32", (1, 3)), Tensor("y", "float32", (1, 3))
    graph = Graph("g", {"x": x, "y": y}, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",))
    found = qconvert.accuracy(graph, graph, tmp_path / "test.npz")
    assert found.top1[0].total == 4 and found.top1[0] == found.top1[1]
    np.savez(tmp_path / "images.npz", images=np.zeros((4, 3), np.float32))
    with refused(OptionError, "labels-missing"):
        read_labels(tmp_path / "images.npz")
