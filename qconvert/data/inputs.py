"""Inputs of a check: files, folders, images, or random integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from qconvert.errors import FileAccessError, OptionError, RuntimeRefusedError
from qconvert.graph import Array, Graph, Op, Tensor, integer_range, numpy_dtype

__all__ = ["accepted_inputs", "load_inputs", "random_inputs"]

#: Plain integers go up to this, unless the source refuses them.
_LARGEST = 8
#: Sizes tried, one after the other, for dimensions known only when the model runs.
_SIZES = (1, 2, 16, 64, 224)
_INTEGERS = {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"}
_IMAGES = {".bmp", ".png", ".jpg", ".jpeg", ".ppm"}


def random_inputs(graph: Graph, samples: int, seed: int, *, size: int = 1, largest: int = _LARGEST) -> list[dict[str, Array]]:
    """`samples` sets of inputs: quantized integers over the whole range of their type, others from 0; floats from -1 to 1, or from a
    normal distribution over the range of the Quantize that reads them.

    Args:
        graph: the source.
        samples: how many sets.
        seed: of the random numbers.
        size: of every dimension that is known only when the model runs; the first of an input is 2 at most.
        largest: bound of plain integers, which are indices or sizes more often than data; see also _bound().

    Returns: for each sample, stored values by input name.
    """
    rng = np.random.default_rng(seed)
    readers = graph.consumers()
    bounds = {name: (_range(graph, readers.get(name, [])), min(largest, _bound(graph, name, readers))) for name in graph.inputs}
    return [{name: _random(graph[name], rng, *bounds[name], size) for name in graph.inputs} for _ in range(samples)]


def accepted_inputs(
    graph: Graph, samples: int, seed: int, run: Callable[[Mapping[str, Array]], dict[str, Array]]
) -> tuple[list[dict[str, Array]], list[dict[str, Array]], str]:
    """Random inputs that the source takes, what it computes from them, and, in words, what had to be chosen otherwise.

    A model may refuse indices that are too large, or sizes that are too small for its windows: plain integers are halved down to 0,
    then sizes known only at run time grow.

    Args:
        graph, samples, seed: as in random_inputs().
        run: runs the source.

    Raises:
        RuntimeRefusedError: the source refuses all of them; this is what it said first.
    """
    plain = any("int" in graph[name].dtype and not graph[name].is_quantized for name in graph.inputs)
    free = any(isinstance(size, str) for name in graph.inputs for size in graph[name].shape or ())
    refusal: RuntimeRefusedError | None = None
    for size in _SIZES if free else (1,):
        for largest in _halves(_LARGEST) if plain else (_LARGEST,):
            feeds = random_inputs(graph, samples, seed, size=size, largest=largest)
            try:
                computed = [run(feed) for feed in feeds]
            except RuntimeRefusedError as error:
                refusal = refusal or error
                continue
            notes = [f"integer inputs are at most {largest}"] * (largest < _LARGEST)
            notes += [f"sizes known only at run time are {size}, the first of an input {min(size, 2)}"] * (size > 1)
            return feeds, computed, f"{' and '.join(notes)}: the source refuses others" if notes else ""
    assert refusal is not None
    raise refusal


def _halves(number: int) -> list[int]:
    """The number, its half, and so on down to 0."""
    return [number] if not number else [number, *_halves(number // 2)]


def _range(graph: Graph, readers: list[Op]) -> tuple[float, float] | None:
    """The real range of the Quantize that reads an input, if one does."""
    for op in readers:
        tensor = graph[op.outputs[0]]
        if op.kind == "Quantize" and tensor.quantization is not None and tensor.dtype in _INTEGERS:
            scale, zero_point = float(tensor.quantization.scale.flat[0]), int(tensor.quantization.zero_point.flat[0])
            low, high = integer_range(tensor.dtype)
            return (low - zero_point) * scale, (high - zero_point) * scale
    return None


def _bound(graph: Graph, name: str, readers: Mapping[str, list[Op]]) -> int:
    """The largest index that every Gather which reads `name`, directly or past a Cast or a reshape, can take."""
    found = 2**63 - 1
    for op in readers.get(name, []):
        if op.kind in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze") and op.inputs[0] == name:
            found = min(found, _bound(graph, op.outputs[0], readers))
        elif op.kind in ("Gather", "GatherElements") and op.inputs[1] == name:
            size = (graph[op.inputs[0]].shape or (1,))[op["axis"]]
            found = min(found, size - 1 if isinstance(size, int) else 0)
    return found


def _random(tensor: Tensor, rng: np.random.Generator, real: tuple[float, float] | None, largest: int, size: int) -> Array:
    shape = _shape(tensor, size)
    if tensor.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if tensor.dtype in _INTEGERS:
        low, high = integer_range(tensor.dtype)
        if not tensor.is_quantized and not _is_data(tensor):
            low, high = 0, min(high, largest)
        return rng.integers(low, high, shape, endpoint=True, dtype=np.int64).astype(numpy_dtype(tensor.dtype))
    if "float" not in tensor.dtype:
        raise OptionError(f"there are no random inputs of type {tensor.dtype}", where=f"input {tensor.name!r}", remedy="Use --data.")
    if real is None:
        return rng.uniform(-1, 1, shape).astype(numpy_dtype(tensor.dtype))
    # Five standard deviations span the range: 1.2% of the values saturate.
    return rng.normal(sum(real) / 2, (real[1] - real[0]) / 5, shape).astype(numpy_dtype(tensor.dtype))


def _is_data(tensor: Tensor) -> bool:
    """Bytes are data even where the graph does not know their scale, as before an operator that it carries unread."""
    return tensor.dtype in ("int8", "uint8")


def _shape(tensor: Tensor, size: int = 1) -> tuple[int, ...]:
    if tensor.shape is None:
        raise OptionError("its shape is not known, so no random input can be made", where=f"input {tensor.name!r}", remedy="Use --data.")
    return tuple((min(size, 2) if axis == 0 else size) if isinstance(own, str) else own for axis, own in enumerate(tensor.shape))


def load_inputs(graph: Graph, paths: Sequence[str | Path], samples: int) -> list[dict[str, Array]]:
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
        raise OptionError("there is no input file", file=", ".join(map(str, paths)))
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
        raise MissingPackageError("images need the package pillow", remedy="Install it with: pip install 'qconvert[images]'") from error
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
