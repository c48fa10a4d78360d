"""Inputs of a graph from files: .npz (several inputs by name), .npy, .bin and images."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from qconvert.data.preparation import Preparation
from qconvert.errors import FileAccessError, MissingPackageError, OptionError
from qconvert.graph import Array, Graph, Tensor, numpy_dtype

__all__ = ["SUFFIXES", "load_inputs"]

_IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm")
#: Suffixes of files that hold inputs; others in a folder are skipped.
SUFFIXES = (".npz", ".npy", ".bin", *_IMAGES)

_AS_IT_IS = Preparation()
_REMEDY = "Write the input's own type and shape, or images."


def load_inputs(
    graph: Graph, paths: Sequence[str | Path], samples: int, preparation: Preparation = _AS_IT_IS
) -> tuple[list[dict[str, Array]], str]:
    """Inputs from files, in the order of the paths, those of a folder by name with numbers counted (2 before 10).

    Args:
        graph: the source; its inputs say which type and shape is wanted.
        paths: files, and folders whose files are taken.
        samples: how many at most.
        preparation: of images, and of real numbers that are no image.

    Returns: stored values by input name for each file, and in words what was skipped, or "".

    Raises:
        FileAccessError: a path does not exist or a file cannot be read.
        OptionError: a file does not fit the model's inputs, or there is none.
    """
    files: list[Path] = []
    skipped: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileAccessError("does not exist", file=str(path))
        if not path.is_dir():
            if path.suffix.lower() not in SUFFIXES:
                raise OptionError(f"holds no input: its suffix is none of {', '.join(SUFFIXES)}", file=str(path))
            files.append(path)
            continue
        for file in sorted((file for file in path.iterdir() if file.is_file() and not file.name.startswith(".")), key=_natural):
            (files if file.suffix.lower() in SUFFIXES else skipped).append(file)
    if not files:
        remedy = f"Files of inputs end in {', '.join(SUFFIXES)}."
        raise OptionError("there is no input file", file=", ".join(map(str, paths)), remedy=remedy)
    found = [_from_file(graph, file, preparation) for file in files[:samples]]
    count = len(skipped)
    return found, f"{count} file{'s' * (count > 1)} of other kinds skipped, the first {skipped[0].name}" if skipped else ""


def _natural(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Numbers in names count as numbers; names that differ in nothing else by their characters."""
    parts = re.split(r"([0-9]+)", path.name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part.lower()) for part in parts if part], path.name


def _from_file(graph: Graph, file: Path, preparation: Preparation) -> dict[str, Array]:
    suffix = file.suffix.lower()
    try:
        if suffix == ".npz":
            return dict(_arrays(graph, file, preparation))
        tensor = _only_input(graph, file)
        if suffix in _IMAGES:
            return {tensor.name: _image(tensor, file, preparation)}
        data = np.load(file, allow_pickle=False) if suffix == ".npy" else _raw(tensor, file)
        return {tensor.name: _fitted(tensor, data, file, preparation)}
    except (OSError, EOFError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
        raise FileAccessError(f"is no usable input: {error}", file=str(file)) from error


def _arrays(graph: Graph, file: Path, preparation: Preparation) -> Iterator[tuple[str, Array]]:
    """The arrays of an .npz file, by the names of inputs; a model of one input takes the only array under any name."""
    with np.load(file, allow_pickle=False) as arrays:
        names = {name: name for name in graph.inputs}
        if len(graph.inputs) == 1 == len(arrays.files):
            names = {graph.inputs[0]: arrays.files[0]}
        for name, stored in names.items():
            if stored not in arrays.files:
                has = ", ".join(arrays.files[:8])
                raise OptionError(f"has no array for the input {name!r}; it has {has or 'none'}", file=str(file))
            yield name, _fitted(graph[name], np.asarray(arrays[stored]), file, preparation)


def _only_input(graph: Graph, file: Path) -> Tensor:
    if len(graph.inputs) != 1:
        raise OptionError(f"the model has {len(graph.inputs)} inputs", file=str(file), remedy="Use .npz files with an array for each.")
    return graph[graph.inputs[0]]


def _fitted(tensor: Tensor, data: Array, file: Path, preparation: Preparation) -> Array:
    """`data` in the input's shape and type; real numbers are prepared and quantized, uint8 pixels of an int8 input lose 128."""
    data = data.reshape(_shape(tensor, data, file))
    if data.dtype.kind == "f" and preparation.given:
        data = preparation.normalized(data, 1 if _channels_first(data.shape) else -1)
    wanted = numpy_dtype(tensor.dtype)
    if data.dtype == wanted:
        return data
    if data.dtype == np.uint8 and tensor.dtype == "int8":
        return (data.astype(np.int16) - 128).astype(np.int8)
    if tensor.quantization is not None and data.dtype.kind == "f":
        from qconvert.arithmetic import quantize

        return quantize(data, tensor.quantization, tensor.dtype)
    same_sort = data.dtype.kind in "iu" if "int" in tensor.dtype else data.dtype.kind in "fiu" and "float" in tensor.dtype
    found = data.astype(wanted)
    if not same_sort or ("int" in tensor.dtype and not np.array_equal(found, data)):
        raise OptionError(f"holds {data.dtype} values, the input {tensor.name!r} is {tensor.dtype}", file=str(file), remedy=_REMEDY)
    return found


def _shape(tensor: Tensor, data: Array, file: Path) -> tuple[int, ...]:
    """The shape of the input for `data`: its own where that fits, else with a batch of 1 before it; raw data take what is left."""
    wanted = tensor.shape
    if wanted is None or _fits(data.shape, wanted):
        return tuple(data.shape)
    if _fits((1, *data.shape), wanted):
        return (1, *data.shape)
    free = [axis for axis, size in enumerate(wanted) if isinstance(size, str)]
    known: list[int] = [size if isinstance(size, int) else 1 for size in wanted]
    if free and data.ndim == 1 and np.prod(known):
        known[free[-1]] = data.size // int(np.prod(known))
    count = int(np.prod(known))
    if data.size == count and (data.ndim == 1 or (not free and _alike(data.shape, wanted))):
        return tuple(known)
    words = f"({', '.join(map(str, wanted))})"
    raise OptionError(f"has the shape {data.shape}, the input {tensor.name!r} has {words}", file=str(file), remedy=_REMEDY)


def _alike(shape: tuple[int, ...], wanted: Sequence[int | str]) -> bool:
    """Whether two shapes differ by sizes of 1 alone."""
    return [size for size in shape if size != 1] == [size for size in wanted if size != 1]


def _fits(shape: tuple[int, ...], wanted: Sequence[int | str]) -> bool:
    return len(shape) == len(wanted) and all(isinstance(size, str) or size == own for own, size in zip(shape, wanted, strict=True))


def _raw(tensor: Tensor, file: Path) -> Array:
    """Bytes of the input's own type; of float32 if there are four for each element of one sample; of uint8 for an int8 input."""
    raw = file.read_bytes()
    shape, size = tensor.shape or (), numpy_dtype(tensor.dtype).itemsize
    count = math.prod(size for size in shape if isinstance(size, int))
    is_open = any(isinstance(size, str) for size in shape)
    if len(raw) == 4 * count and size != 4 and not any(isinstance(size, str) for size in shape[1:]):
        return np.frombuffer(raw, np.float32)
    if len(raw) != size * count and (not is_open or not count or len(raw) % (size * count)):
        raise OptionError(f"holds {len(raw)} bytes, the input {tensor.name!r} has {size * count}", file=str(file), remedy=_REMEDY)
    return np.frombuffer(raw, numpy_dtype(tensor.dtype))


def _channels_first(shape: Sequence[int | str]) -> bool:
    return len(shape) == 4 and shape[3] not in (1, 3) and shape[1] in (1, 3)


def _image(tensor: Tensor, file: Path, preparation: Preparation) -> Array:
    """An image resized to the input (channels last, or first if only that fits). Integers get pixels as they are, 0 to 255, shifted for
    int8, unless a preparation is asked for; real inputs get prepared values, -1 to 1 by default."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingPackageError("images need the package pillow", remedy="Install it with: pip install 'qconvert[images]'") from error
    shape = tensor.shape or ()
    first = _channels_first(shape)
    height, width, channels = (*shape[2:], *shape[1:2]) if first else shape[1:] if len(shape) == 4 else ("", "", "")
    if channels not in (1, 3):
        raise OptionError(f"an image does not fit the input {tensor.name!r} of shape {shape}", file=str(file))
    try:
        with Image.open(file) as image:
            size = (width if isinstance(width, int) else image.width, height if isinstance(height, int) else image.height)
            converted = image.convert("L" if channels == 1 else "RGB").resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(converted).reshape(1, size[1], size[0], channels)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise FileAccessError(f"is no image that can be read: {error}", file=str(file)) from error
    is_real = "float" in tensor.dtype
    values = preparation.image(pixels) if is_real or preparation.given else pixels
    return _fitted(tensor, np.ascontiguousarray(values.transpose(0, 3, 1, 2) if first else values), file, _AS_IT_IS)
