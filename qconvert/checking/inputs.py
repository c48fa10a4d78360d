"""Inputs of a check: files, folders, images, or random integers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from qconvert.errors import FileAccessError, OptionError
from qconvert.graph import Array, Graph, Tensor, integer_range, numpy_dtype

__all__ = ["load_inputs", "random_inputs"]

_IMAGES = {".bmp", ".png", ".jpg", ".jpeg", ".ppm"}


def random_inputs(graph: Graph, samples: int, seed: int) -> list[dict[str, Array]]:
    """`samples` sets of inputs: integers over the whole range of their type, floats from -1 to 1. Symbolic sizes are 1.

    Returns: for each sample, stored values by input name.
    """
    rng = np.random.default_rng(seed)
    return [{name: _random(graph[name], rng) for name in graph.inputs} for _ in range(samples)]


def _random(tensor: Tensor, rng: np.random.Generator) -> Array:
    shape = _shape(tensor)
    if tensor.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in tensor.dtype:
        low, high = integer_range(tensor.dtype)
        if not tensor.is_quantized:
            low, high = 0, min(high, 8)  # plain integers are indices or sizes more often than data
        return rng.integers(low, high, shape, endpoint=True).astype(numpy_dtype(tensor.dtype))
    return rng.uniform(-1, 1, shape).astype(numpy_dtype(tensor.dtype))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    if tensor.shape is None:
        raise OptionError("its shape is not known, so no random input can be made", where=f"input {tensor.name!r}")
    return tuple(1 if isinstance(size, str) else size for size in tensor.shape)


def load_inputs(graph: Graph, paths: list[str], samples: int) -> list[dict[str, Array]]:
    """Inputs from files: .npz (arrays by input name), .npy, .bin (raw; of the input's own type, or float32) and images.

    Args:
        graph: the source; its inputs say which type and shape is wanted.
        paths: files, and folders whose files are taken in order of their names.
        samples: how many at most.

    Raises:
        FileAccessError: a path does not exist or a file cannot be read.
        OptionError: a file does not fit the model's inputs.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileAccessError("does not exist", file=str(path))
        files += sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")) if path.is_dir() else [path]
    found = [_from_file(graph, file) for file in sorted(files, key=_natural)[:samples]]
    if not found:
        raise OptionError("there is no input file", file=", ".join(paths))
    return found


def _natural(path: Path) -> tuple[str, int, str]:
    """Files that are numbered come in the order of their numbers."""
    return (str(path.parent), int(path.stem), "") if path.stem.isdigit() else (str(path.parent), 0, path.name)


def _from_file(graph: Graph, file: Path) -> dict[str, Array]:
    suffix = file.suffix.lower()
    try:
        if suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return {name: _fitted(graph[name], np.asarray(arrays[name]), file) for name in graph.inputs}
        tensor = _only_input(graph, file)
        if suffix in _IMAGES:
            return {tensor.name: _image(tensor, file)}
        if suffix == ".npy":
            return {tensor.name: _fitted(tensor, np.load(file, allow_pickle=False), file)}
        return {tensor.name: _raw(tensor, file)}
    except (OSError, KeyError, ValueError) as error:
        raise FileAccessError(f"is no usable input: {error}", file=str(file)) from error


def _only_input(graph: Graph, file: Path) -> Tensor:
    if len(graph.inputs) != 1:
        raise OptionError(f"the model has {len(graph.inputs)} inputs", file=str(file), remedy="Use .npz files with an array for each.")
    return graph[graph.inputs[0]]


def _fitted(tensor: Tensor, data: Array, file: Path) -> Array:
    """`data` in the input's shape and type; real numbers are quantized, uint8 pixels of an int8 input lose 128."""
    if data.size != math.prod(_shape(tensor)):
        raise OptionError(f"holds {data.size} values, the input {tensor.name!r} has {math.prod(_shape(tensor))}", file=str(file))
    data = data.reshape(_shape(tensor))
    wanted = numpy_dtype(tensor.dtype)
    if data.dtype == wanted:
        return data
    if data.dtype == np.uint8 and tensor.dtype == "int8":
        return (data.astype(np.int16) - 128).astype(np.int8)
    if tensor.quantization is not None and data.dtype.kind == "f":
        from qconvert.arithmetic import quantize

        return quantize(data, tensor.quantization, tensor.dtype)
    return data.astype(wanted)


def _raw(tensor: Tensor, file: Path) -> Array:
    """Bytes of the input's own type; of float32 if there are four for each element; of uint8 for an int8 input."""
    raw, count = file.read_bytes(), math.prod(_shape(tensor))
    size = numpy_dtype(tensor.dtype).itemsize
    if len(raw) == 4 * count and size != 4:
        return _fitted(tensor, np.frombuffer(raw, np.float32), file)
    if len(raw) != size * count:
        raise OptionError(f"holds {len(raw)} bytes, the input {tensor.name!r} has {size * count}", file=str(file))
    return np.frombuffer(raw, numpy_dtype(tensor.dtype)).reshape(_shape(tensor))


def _image(tensor: Tensor, file: Path) -> Array:
    """An image resized to the input (channels last, or first if only that fits), as the stored integers 0 to 255, shifted for int8.

    A float input gets values from -1 to 1.
    """
    from qconvert.errors import MissingPackageError

    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("images need the package pillow", remedy="pip install qconvert[images]") from error
    shape = _shape(tensor)
    if len(shape) != 4:
        raise OptionError(f"an image does not fit an input of shape {shape}", file=str(file))
    first = shape[3] not in (1, 3) and shape[1] in (1, 3)
    height, width, channels = (shape[2], shape[3], shape[1]) if first else (shape[1], shape[2], shape[3])
    with Image.open(file) as image:
        pixels = np.asarray(image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR))
    pixels = pixels.reshape(1, height, width, channels)
    pixels = pixels.transpose(0, 3, 1, 2) if first else pixels
    if tensor.dtype == "float32":
        return (pixels.astype(np.float32) - 127.5) / 127.5
    return _fitted(tensor, np.ascontiguousarray(pixels), file)
