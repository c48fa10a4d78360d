"""What is said of prepared images, and where data do not fit the quantization of an input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qconvert.data import InputFiles, Preparation
from qconvert.graph import Graph, Quantization, Tensor


def takes(dtype: str, scale: float = 0.0, zero_point: int = 0) -> Graph:
    """An input of images of 4 x 6 pixels."""
    quantization = Quantization(np.float32([scale]), np.array([zero_point])) if scale else None
    return Graph("g", {"x": Tensor("x", dtype, (1, 4, 6, 3), quantization=quantization)}, (), ("x",), ("x",))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def test_images_say_how_they_are_prepared(image: Path) -> None:
    found = InputFiles(takes("float32"), [image], None, Preparation(resize="stretch"))
    assert found.notes == ("images: stretched to 4 x 6, rgb, pixels 0 to 255 become -1 to 1, nhwc",)
    asked = Preparation(resize=(8,), crop=(4, 6), colour="bgr", mean=(0.5,), std=(0.25,))
    (said,) = InputFiles(takes("float32"), [image], None, asked).notes
    assert said == (
        "images: resized to a shorter side of 8, the middle 4 x 6 is cut out, bgr, pixels 0 to 255 become 0 to 1, "
        "minus the mean 0.5, divided by the std 0.25, nhwc"
    )
    assert InputFiles(takes("uint8", 1 / 255), [image], None, Preparation(resize="stretch")).notes[0].count("pixels as they are") == 1


@pytest.mark.parametrize(("range_", "scale", "zero_point", "warned"), [
    ((-1.0, 1.0), 1 / 128, 128, False), ((0.0, 255.0), 1 / 128, 128, True), ((0.0, 1.0), 1.0, 0, True), ((0.0, 255.0), 1.0, 0, False),
    ((0.0, 1.0), 1 / 255, 0, False), ((-1.0, 1.0), 1 / 255, 0, True), ((0.0, 1.0), 1 / 128, 128, False),
])  # fmt: skip
def test_declared_ranges_that_do_not_fit(image: Path, range_: tuple[float, float], scale: float, zero_point: int, warned: bool) -> None:
    graph = takes("uint8", scale, zero_point)
    notes = InputFiles(graph, [image], None, Preparation(resize="stretch", pixel_range=range_)).notes
    assert len(notes) == 1 + warned
    values = np.linspace(*range_, 72, dtype=np.float32).reshape(1, 4, 6, 3)
    np.save(image.parent / "b.npy", values)
    assert len(InputFiles(graph, [image.parent / "b.npy"]).notes) == warned
