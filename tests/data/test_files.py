"""Inputs from files: their order, what is skipped, what is refused, and how images and real numbers are prepared."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from qconvert import Graph, Preparation, Quantization, Tensor, check
from qconvert.data import InputFiles, load_inputs, numbers
from qconvert.errors import FileAccessError, MissingPackageError, OptionError

GRID = Quantization.per_tensor(0.5, 3)


def graph_of(*inputs: Tensor) -> Graph:
    names = tuple(tensor.name for tensor in inputs)
    return Graph("made", {tensor.name: tensor for tensor in inputs}, (), names, names)


def of(dtype: str, shape: tuple[Any, ...], quantization: Quantization | None = None, name: str = "x") -> Tensor:
    return Tensor(name, dtype, shape, None, quantization)


ROW = graph_of(of("int8", (1, 4), GRID))
PICTURE = graph_of(of("float32", (1, 2, 3, 3)))
PIXELS = np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 10


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_files_of_a_folder_come_by_number_and_others_are_skipped(tmp_path: Path) -> None:
    for number in (10, 9, 100, 1):
        np.save(tmp_path / f"sample_{number}.npy", np.full((1, 4), number, np.int8))
    (tmp_path / "labels.txt").write_text("cat")
    (tmp_path / ".hidden.npy").write_bytes(b"")
    (tmp_path / "README.md").write_text("")
    found, note = load_inputs(ROW, [tmp_path], 9)
    assert [int(feed["x"][0, 0]) for feed in found] == [1, 9, 10, 100]
    assert note == ("2 files of other kinds skipped, the first labels.txt",)
    assert len(load_inputs(ROW, [tmp_path], 2)[0]) == 2


def test_paths_come_in_the_order_given(tmp_path: Path) -> None:
    for name, value in (("b.npy", 1), ("a.npy", 2)):
        np.save(tmp_path / name, np.full((1, 4), value, np.int8))
    found, _ = load_inputs(ROW, [tmp_path / "b.npy", str(tmp_path / "a.npy")], 5)
    assert [int(feed["x"][0, 0]) for feed in found] == [1, 2]


def test_several_inputs_by_name(tmp_path: Path) -> None:
    graph = graph_of(of("int32", (2,), name="ids"), of("float32", ("n", 3), name="x"))
    np.savez(tmp_path / "a.npz", x=np.ones((5, 3), np.float32), ids=np.array([1, 2]), more=np.zeros(1))
    (feed,), note = load_inputs(graph, [tmp_path], 5)
    assert (feed["ids"].dtype, feed["x"].shape, note) == (np.int32, (5, 3), ())
    np.savez(tmp_path / "b.npz", x=np.ones((5, 3), np.float32))
    with refused(OptionError, "input-missing", holds=("'ids'", "'x'")) as caught:
        load_inputs(graph, [tmp_path / "b.npz"], 5)
    assert caught.value.file == str(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", np.zeros(2))
    with refused(OptionError, "one-array-for-many", holds=(2,)):
        load_inputs(graph, [tmp_path / "c.npy"], 5)


@pytest.mark.parametrize(("data", "expected"), [
    (np.array([[1, 2, 3, 4]], np.int8), [1, 2, 3, 4]),
    (np.array([1, 2, 3, 4], np.int8), [1, 2, 3, 4]),  # without the batch
    (np.array([[128, 0, 255, 1]], np.uint8), [0, -128, 127, -127]),  # pixels
    (np.array([[1, 2, 3, -4]], np.int64), [1, 2, 3, -4]),
    (np.array([[0.5, -1, 0, 99]]), [4, 1, 3, 127]),  # float values, quantized
])  # fmt: skip
def test_values_fit_the_input(data: np.ndarray, expected: list[int], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", data)
    (feed,), _ = load_inputs(ROW, [tmp_path], 1)
    assert feed["x"].dtype == np.int8 and feed["x"].tolist() == [expected]


@pytest.mark.parametrize(("data", "rule", "named"), [
    (np.zeros((2, 2), np.int8), "shape-mismatch", ("(2, 2)", "'x'", "(1, 4)")),
    (np.zeros((2, 1, 2), np.int8), "shape-mismatch", ("(2, 1, 2)",)),
    (np.zeros((1, 5), np.int8), "shape-mismatch", ("(1, 5)",)),
    (np.array([[1, 2, 3, 400]], np.int64), "type-mismatch", ("int64", "'x'", "int8")),
    (np.array([[True, False, True, True]]), "type-mismatch", ("bool", "'x'", "int8")),
])  # fmt: skip
def test_wrong_shapes_and_types_name_file_and_input(data: np.ndarray, rule: str, named: tuple[object, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", data)
    with refused(OptionError, rule, holds=named) as caught:
        load_inputs(ROW, [tmp_path], 1)
    assert caught.value.file == str(tmp_path / "wrong.npy")


def test_real_numbers_for_plain_integers_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1.0, 2.5]))
    with refused(OptionError, "type-mismatch", holds=("'x'",)):
        load_inputs(graph_of(of("int64", (2,))), [tmp_path], 1)


@pytest.mark.parametrize("header", ["((((((((", "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}"])
def test_headers_that_say_nonsense_are_named(header: str, tmp_path: Path) -> None:
    text = header.ljust(117).encode() + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64))
    with refused(FileAccessError, "not-readable") as caught:
        load_inputs(ROW, [tmp_path], 1)
    assert caught.value.file == str(tmp_path / "a.npy")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.png"])
def test_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x93NUMPY\x01\x00damaged")
    graph = PICTURE if name.endswith("png") else ROW
    with refused(FileAccessError, "not-readable") as caught:
        load_inputs(graph, [tmp_path], 1)
    assert caught.value.file == str(tmp_path / name)


def test_what_holds_no_input(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat")
    with refused(OptionError, "no-input-files"):
        load_inputs(ROW, [tmp_path], 1)
    with refused(OptionError, "unknown-suffix"):
        load_inputs(ROW, [tmp_path / "labels.txt"], 1)
    with refused(FileAccessError, "file-not-found"):
        load_inputs(ROW, [tmp_path / "none"], 1)


def test_raw_files(tmp_path: Path) -> None:
    np.array([1, 2, 3, 4], np.int8).tofile(tmp_path / "a.bin")
    np.array([0.5, 0, 1, -1], np.float32).tofile(tmp_path / "b.bin")
    found, _ = load_inputs(ROW, [tmp_path], 5)
    assert [feed["x"].tolist() for feed in found] == [[[1, 2, 3, 4]], [[4, 3, 5, 1]]]
    np.zeros(5, np.int8).tofile(tmp_path / "c.bin")
    with refused(OptionError, "size-differs", holds=(5, "'x'", 4)):
        load_inputs(ROW, [tmp_path / "c.bin"], 5)
    (feed,), _ = load_inputs(graph_of(of("int8", ("n", 2))), [tmp_path / "a.bin"], 1)
    assert feed["x"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("preparation", "expected"), [
    (Preparation(), PIXELS / 127.5 - 1),
    (Preparation(pixel_range=(0, 255)), PIXELS),
    (Preparation(mean=(127.5,), std=(127.5,), pixel_range=(0, 255)), PIXELS / 127.5 - 1),
    (Preparation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
     (PIXELS / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]),
])  # fmt: skip
def test_images_are_prepared(preparation: Preparation, expected: np.ndarray, picture: Path) -> None:
    (feed,), _ = load_inputs(PICTURE, [picture], 1, preparation)
    assert np.allclose(feed["x"][0], expected, atol=1e-5)
    first = graph_of(of("float32", (1, 3, 2, 8)))
    (feed,), _ = load_inputs(first, [picture], 1, preparation.with_stretch())
    assert feed["x"].shape == (1, 3, 2, 8)
    assert np.allclose(feed["x"][0, :, :, 0], expected[:, 0].T, atol=1e-5)


def test_images_for_integers(picture: Path) -> None:
    quantization = Quantization.per_tensor(1 / 127.5, 0)
    for tensor, preparation, expected in (
        (of("uint8", (1, 2, 3, 3), quantization), Preparation(), PIXELS),
        (of("int8", (1, 2, 3, 3), quantization), Preparation(), PIXELS.astype(int) - 128),
        (of("int8", (1, 2, 3, 3), quantization), Preparation(pixel_range=(-1, 1)), np.clip(np.rint(PIXELS - 127.5), -128, 127)),
    ):
        (feed,), _ = load_inputs(graph_of(tensor), [picture], 1, preparation)
        assert np.abs(feed["x"][0].astype(int) - expected).max() <= (1 if preparation.has_value_rule else 0)
    with refused(OptionError, "not-an-image-input", holds=("'x'",)):
        load_inputs(ROW, [picture], 1)


def test_real_numbers_are_normalized(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((1, 2, 3, 3), 5, np.float32))
    (feed,), _ = load_inputs(PICTURE, [tmp_path], 1, Preparation(mean=(1, 2, 3), std=(2,)))
    assert np.allclose(feed["x"][0, 0, 0], [2, 1.5, 1])
    with refused(OptionError, "channel-count", holds=("--mean", 2, 3)):
        load_inputs(PICTURE, [tmp_path], 1, Preparation(mean=(1, 2)))


def test_preparations_that_mean_nothing() -> None:
    for wrong, rule in (
        ({"std": (0.0,)}, "std-not-positive"),
        ({"mean": (float("nan"),)}, "not-finite"),
        ({"pixel_range": (1.0, 1.0)}, "empty-range"),
    ):
        with refused(OptionError, rule):
            Preparation(**wrong)  # type: ignore[arg-type]
    assert numbers("1,2.5", "mean") == (1.0, 2.5)
    with refused(OptionError, "not-a-number", holds=("--mean 'a'",)):
        numbers("a", "mean")
    with refused(OptionError, "number-count", holds=("--pixel-range", 2, 3)):
        numbers("1,2,3", "pixel-range", 2)


@pytest.mark.parametrize("shape", [(3, 4), (3, 1, 4)])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_an_array_of_many_samples_is_read_row_by_row(shape: tuple[int, ...], suffix: str, tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.int8).reshape(shape)
    if suffix == ".npy":
        np.save(tmp_path / "a.npy", data)
    else:
        np.savez(tmp_path / "a.npz", data)
    np.save(tmp_path / "b.npy", np.full((1, 4), 99, np.int8))
    found = InputFiles(ROW, [tmp_path])
    assert len(found) == 4 and [feed["x"].tolist() for feed in found[1:]] == [[[4, 5, 6, 7]], [[8, 9, 10, 11]], [[99] * 4]]
    assert (found.where(1), found.where(3)) == (f"{tmp_path / ('a' + suffix)}[1]", str(tmp_path / "b.npy"))
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again[2]["x"], found[2]["x"])
    assert len(InputFiles(ROW, [tmp_path], 2)) == 2


def test_arrays_of_different_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    graph = graph_of(of("float32", (1, 2), name="a"), of("float32", (1, 3), name="b"))
    np.savez(tmp_path / "x.npz", a=np.zeros((4, 2), np.float32), b=np.zeros((5, 3), np.float32))
    with refused(OptionError, "sample-count", holds=(4, 5)):
        InputFiles(graph, [tmp_path])


def gradient(folder: Path, height: int, width: int) -> Path:
    """An image whose red is the row and whose green is the column."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(height)[:, None], np.arange(width)
    Image.fromarray(pixels).save(folder / "g.png")
    return folder / "g.png"


def test_an_image_of_another_size_needs_a_rule(tmp_path: Path) -> None:
    path, graph = gradient(tmp_path, 8, 20), graph_of(of("uint8", (1, 4, 4, 3)))
    with refused(OptionError, "image-size", holds=(8, 20, 4)) as caught:
        load_inputs(graph, [path], 1)
    assert caught.value.file == str(path) and "--resize" in caught.value.remedy
    with refused(OptionError, "image-size", holds=(4, 10)):
        load_inputs(graph, [path], 1, Preparation(resize=(4,)))
    with refused(OptionError, "image-size", holds=(8, 20, 9)):
        load_inputs(graph, [path], 1, Preparation(crop=(9,)))


@pytest.mark.parametrize(("preparation", "rows", "columns"), [
    (Preparation(crop=(4,)), [2, 3, 4, 5], [8, 9, 10, 11]),
    (Preparation(crop=(4, 4)), [2, 3, 4, 5], [8, 9, 10, 11]),
    (Preparation(share=(0.5, 0.2)), [2, 3, 4, 5], [8, 9, 10, 11]),
    (Preparation(resize=(4,), crop=(4, 4)), [1, 3, 4, 6], [6, 9, 10, 12]),
    (Preparation(resize="stretch"), [1, 3, 4, 6], [2, 7, 12, 17]),
    (Preparation(resize=(4, 4)), [1, 3, 4, 6], [2, 7, 12, 17]),
])  # fmt: skip
def test_images_are_brought_to_the_size(preparation: Preparation, rows: list[int], columns: list[int], tmp_path: Path) -> None:
    (feed,), _ = load_inputs(graph_of(of("uint8", (1, 4, 4, 3))), [gradient(tmp_path, 8, 20)], 1, preparation)
    assert np.abs(feed["x"][0, :, 0, 0].astype(int) - rows).max() <= 1
    assert np.abs(feed["x"][0, 0, :, 1].astype(int) - columns).max() <= 1


def test_orders_of_colour_and_layouts(picture: Path) -> None:
    graph = graph_of(of("uint8", (1, 2, 3, 3)))
    for colour, order in (("rgb", [0, 1, 2]), ("bgr", [2, 1, 0])):
        (feed,), _ = load_inputs(graph, [picture], 1, Preparation(colour=colour))
        assert np.array_equal(feed["x"][0], PIXELS[..., order])
    (feed,), _ = load_inputs(graph_of(of("uint8", (1, 3, 2, 3))), [picture], 1, Preparation(layout="nchw"))
    assert np.array_equal(feed["x"][0], PIXELS.transpose(2, 0, 1))
    (feed,), _ = load_inputs(graph_of(of("uint8", (1, 2, 3, 4))), [picture], 1, Preparation(colour="bgra"))
    assert np.array_equal(feed["x"][0, ..., :3], PIXELS[..., ::-1]) and (feed["x"][0, ..., 3] == 255).all()
    with refused(OptionError, "channel-count", holds=(1, 3)):
        load_inputs(graph, [picture], 1, Preparation(colour="gray"))


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"resize": "fit"}, "resize-form"),
        ({"crop": (0,)}, "size-not-positive"),
        ({"resize": (1, 2, 3)}, "size-not-positive"),
        ({"share": (0, 1)}, "number-out-of-range"),
        ({"colour": "cmyk"}, "unknown-word"),
        ({"layout": "chw"}, "unknown-word"),
    ],
)
def test_rules_of_size_and_colour_that_mean_nothing(wrong: dict[str, Any], rule: str) -> None:
    with refused(OptionError, rule):
        Preparation(**wrong)


@pytest.mark.parametrize("suffix", [".npy", ".txt", ".csv"])
def test_a_pipe_for_labels_is_not_waited_for(suffix: str, tmp_path: Path) -> None:
    from qconvert.data.labels import read_labels

    os.mkfifo(tmp_path / f"labels{suffix}")
    np.save(tmp_path / "data.npy", np.zeros((2, 4), np.float32))
    with refused(FileAccessError, "not-a-regular-file"):
        read_labels(tmp_path / "data.npy", tmp_path / f"labels{suffix}")


def test_images_without_what_reads_them_are_an_error_of_the_check_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with refused(MissingPackageError, "package-missing") as caught:
        check(tmp_path / "a.onnx", tmp_path / "b.onnx", data=[tmp_path])
    assert "qconvert[images]" in caught.value.remedy
