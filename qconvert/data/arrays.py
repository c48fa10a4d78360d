"""Arrays and images of files: what .npy and .npz files say of their arrays before any value is read, since an archive of some kilobytes
may hold terabytes; and arrays and images brought to the type and the shape of an input.
"""

from __future__ import annotations

import lzma
import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy

from qconvert.arithmetic import affine_range
from qconvert.data.preparation import Preparation
from qconvert.errors import FileAccessError, MissingPackageError, OptionError, name_file_in_errors
from qconvert.graph import Array, Graph, Tensor, numpy_dtype

_AS_IT_IS = Preparation()
_REMEDY = "Write the input's own type and shape, or images."


def samples_in(tensor: Tensor, shape: tuple[int, ...]) -> int:
    """How many samples an array of this shape holds along its first axis, if it holds several; 0 if it is one."""
    wanted = tensor.shape
    if wanted is None or not shape or _fits(shape, wanted) or _fits((1, *shape), wanted):
        return 0
    if wanted and _fits(shape[1:], wanted):
        return shape[0]
    return shape[0] if wanted and wanted[0] == 1 and shape[0] > 1 and _fits((1, *shape[1:]), wanted) else 0


def prepare_values(tensor: Tensor, data: Array, where: str, preparation: Preparation) -> Array:
    """Return `data` in the input's shape; real numbers are prepared.

    Raises:
        OptionError: they have another shape.
    """
    data = data.reshape(fitting_shape(tensor, data.shape, where))
    if data.dtype.kind == "f" and preparation.has_value_rule:
        data = preparation.normalize(data, 1 if preparation.is_channels_first(data.shape) else -1)
    return data


def range_warning(graph: Graph, name: str, low: float, high: float, what: str) -> str:
    """Return a warning where values do not fit the quantization of an input; "" where they fit, or the input has none.

    Values fit that leave the range of the integers by at most a tenth of it, and that have at least an eighth of its width.
    """
    quantized = [graph[name], *(graph[op.outputs[0]] for op in graph.of_kind("Quantize") if op.inputs[0] == name)]
    quantizations = [
        (one.dtype, one.quantization) for one in quantized if one.quantization is not None and one.quantization.scale.size == 1
    ]
    for dtype, q in quantizations:
        least, most = (float(limit[0]) for limit in affine_range(q, dtype))
        margin = (most - least) / 10
        if low < least - margin or high > most + margin or 0 < high - low < (most - least) / 8:
            takes = f"the input {name!r} holds {least:.4g} to {most:.4g}"
            return f"warning: {what} {low:.4g} to {high:.4g}, and {takes}; give the model's range with --pixel-range, --mean and --std"
    return ""


def fit_values(tensor: Tensor, data: Array, where: str, preparation: Preparation) -> Array:
    """`data` in the input's shape and type; real numbers are prepared and quantized, uint8 pixels of an int8 input lose 128.

    Args:
        tensor: the input.
        data: its values.
        where: where they come from, for errors.
        preparation: of real numbers.

    Raises:
        OptionError: they have another shape, or are values that the input does not take.
    """
    data = prepare_values(tensor, data, where, preparation)
    wanted = numpy_dtype(tensor.dtype)
    if data.dtype == wanted:
        return data
    if data.dtype == np.uint8 and tensor.dtype == "int8":
        return (data.astype(np.int16) - 128).astype(np.int8)
    if tensor.quantization is not None and data.dtype.kind == "f":
        from qconvert.arithmetic import quantize

        if np.isnan(data).any():
            raise OptionError(f"holds NaN, which has no integer of the quantized input {tensor.name!r}", file=where, rule="not-finite")
        return quantize(data, tensor.quantization, tensor.dtype)
    same_sort = data.dtype.kind in "iu" if "int" in tensor.dtype else data.dtype.kind in "fiu" and "float" in tensor.dtype
    with np.errstate(over="ignore"):  # what is beyond the type is infinite
        found = data.astype(wanted) if same_sort else data
    if not same_sort or ("int" in tensor.dtype and not np.array_equal(found, data)):
        raise OptionError(
            f"holds {data.dtype} values; the input {tensor.name!r} requires {tensor.dtype}",
            file=where,
            remedy=_REMEDY,
            rule="type-mismatch",
        )
    return found


def fitting_shape(tensor: Tensor, shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    """The shape of the input for data of a shape: their own where that fits, else with a batch of 1 before it; raw data take what is left.

    Args:
        tensor: the input.
        shape: of one sample.
        where: it comes from, for errors.

    Raises:
        OptionError: it does not fit, or is that of no value at all.
    """
    wanted = tensor.shape
    if 0 in shape and 0 not in (wanted or ()):
        raise OptionError(
            f"has the shape {shape}, which holds no values for the input {tensor.name!r}", file=where, remedy=_REMEDY, rule="shape-mismatch"
        )
    if wanted is None or _fits(shape, wanted):
        return tuple(shape)
    if _fits((1, *shape), wanted):
        return (1, *shape)
    free = [axis for axis, size in enumerate(wanted) if isinstance(size, str)]
    known: list[int] = [size if isinstance(size, int) else 1 for size in wanted]
    least = math.prod(known)
    if free and len(shape) == 1 and least:
        known[free[-1]] = shape[0] // least
    if math.prod(shape) == math.prod(known) and (len(shape) == 1 or (not free and _alike(shape, wanted))):
        return tuple(known)
    words = f"({', '.join(map(str, wanted))})"
    raise OptionError(
        f"the shape is {shape}; the input {tensor.name!r} requires {words}", file=where, remedy=_REMEDY, rule="shape-mismatch"
    )


def _alike(shape: tuple[int, ...], wanted: Sequence[int | str]) -> bool:
    """Whether two shapes differ by sizes of 1 alone."""
    return [size for size in shape if size != 1] == [size for size in wanted if size != 1]


def _fits(shape: tuple[int, ...], wanted: Sequence[int | str]) -> bool:
    return len(shape) == len(wanted) and all(isinstance(size, str) or size == own for own, size in zip(shape, wanted, strict=True))


def bytes_of(tensor: Tensor, file: Path) -> Array:
    """Bytes of the input's own type; of float32 if there are four for each element of one sample; of uint8 for an int8 input."""
    shape, size, held = tensor.shape or (), numpy_dtype(tensor.dtype).itemsize, file.stat().st_size
    count = math.prod(size for size in shape if isinstance(size, int))
    is_open = any(isinstance(size, str) for size in shape)
    if held == 4 * count and size != 4 and not any(isinstance(size, str) for size in shape[1:]):
        return np.frombuffer(file.read_bytes(), np.float32)
    if held != size * count and (not is_open or not count or held % (size * count)):
        raise OptionError(
            f"holds {held} bytes; the input {tensor.name!r} requires {size * count}", file=str(file), remedy=_REMEDY, rule="size-differs"
        )
    return np.frombuffer(file.read_bytes(), numpy_dtype(tensor.dtype))


def _image_input(tensor: Tensor, file: Path, preparation: Preparation) -> tuple[tuple[int | None, int | None], int, bool]:
    """Height and width of an input of images, None where any will do, its channels, and whether they come first."""
    shape = tensor.shape or ()
    first = preparation.is_channels_first(shape)
    height, width, channels = (*shape[2:], *shape[1:2]) if first else shape[1:] if len(shape) == 4 else ("", "", "")
    if channels not in (1, 3, 4) or isinstance(channels, str):
        raise OptionError(
            f"the input {tensor.name!r} has the shape {shape}, which is not that of an image", file=str(file), rule="not-an-image-input"
        )
    return (height if isinstance(height, int) else None, width if isinstance(width, int) else None), channels, first


def image_sentence(tensor: Tensor, file: Path, preparation: Preparation) -> str:
    """Return what image_of() does with an image, in one line.

    Raises:
        OptionError: the input takes no images.
    """
    wanted, channels, first = _image_input(tensor, file, preparation)
    return preparation.sentence(wanted, channels, is_first=first, is_real="float" in tensor.dtype)


def image_ends(tensor: Tensor, file: Path, preparation: Preparation) -> tuple[float, float] | None:
    """Return the smallest and the largest value that an image can have as real numbers; None where an input gets pixels as they are."""
    _, channels, _ = _image_input(tensor, file, preparation)
    if "float" not in tensor.dtype and not preparation.has_value_rule:
        return None
    values = preparation.image(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1).repeat(channels, 3))
    return float(values.min()), float(values.max())


def require_images() -> None:
    """Raise MissingPackageError where the package that reads images is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "images need the package pillow", remedy="Install it with: pip install 'qconvert[images]'", rule="package-missing"
        ) from error


def image_of(tensor: Tensor, file: Path, preparation: Preparation) -> Array:
    """An image as an input. Integers get pixels as they are, 0 to 255, shifted for int8, unless a preparation is asked for; real inputs
    get prepared values, -1 to 1 by default."""
    require_images()
    from PIL import Image, UnidentifiedImageError

    wanted, channels, first = _image_input(tensor, file, preparation)
    try:
        with name_file_in_errors(file):
            mode, order = preparation.mode(channels)
            with Image.open(file) as image:
                converted = preparation.resize_image(image.convert(mode), wanted)
                pixels = np.asarray(converted).reshape(1, converted.height, converted.width, channels)[..., list(order)]
            is_real = "float" in tensor.dtype
            values = preparation.image(pixels) if is_real or preparation.has_value_rule else pixels
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise FileAccessError(f"cannot be read as an image: {error}", file=str(file), rule="not-readable") from error
    return fit_values(tensor, np.ascontiguousarray(values.transpose(0, 3, 1, 2) if first else values), str(file), _AS_IT_IS)


_T = TypeVar("_T")
#: What a damaged file makes numpy, Pillow, the zip archive or the file system raise. An encrypted archive is a RuntimeError.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    OverflowError,
    MemoryError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,
)
#: Kinds of numpy's types: truth values, integers, real and complex numbers.
_NUMBERS = "biufc"


def guard_reading(file: Path, read: Callable[[], _T], what: str = "a usable input") -> _T:
    """Return the result of `read`. Its exceptions for a damaged file become a FileAccessError with `what` in its text; its warnings are
    dropped."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except OptionError:  # which says itself what does not fit
        raise
    except _DAMAGE as error:
        said = str(error) or type(error).__name__
        raise FileAccessError(f"is not {what}: {' '.join(said.split())}", file=str(file), rule="not-readable") from error


def shapes(file: Path, choose: Callable[[list[str]], Sequence[str]], what: str = "a usable input") -> list[tuple[int, ...]]:
    """The shapes of arrays in an .npz file, or of the one in an .npy file, of which no values are read.

    Args:
        file: its suffix says which it is.
        choose: gives the names of the arrays that are wanted, of those that an archive has.
        what: see guard_reading().

    Raises:
        OptionError: an array holds no numbers.
        FileAccessError: the file cannot be read.
    """
    return guard_reading(file, lambda: _shapes(file, choose), what)


def _shapes(file: Path, choose: Callable[[list[str]], Sequence[str]]) -> list[tuple[int, ...]]:
    if file.suffix.lower() == ".npy":
        found = map_array(file)
        return [_require_numbers(found.shape, found.dtype, file)]
    with zipfile.ZipFile(file) as archive:
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        return [_in_archive(archive, members[name], file) for name in choose([*members])]


def _in_archive(archive: zipfile.ZipFile, member: str, file: Path) -> tuple[int, ...]:
    with archive.open(member) as stream:
        read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
    return _require_numbers(shape, dtype, file)


def _require_numbers(shape: tuple[int, ...], dtype: np.dtype[Any], file: Path) -> tuple[int, ...]:
    if dtype.kind not in _NUMBERS:
        raise OptionError(f"holds {dtype} values, which are not numbers", file=str(file), rule="not-numbers")
    return shape


def map_array(file: Path) -> Array:
    """An .npy file whose rows are read when they are asked for."""
    found: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    return found
