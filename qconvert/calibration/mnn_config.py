"""The JSON configuration of MNN's quantizer (mnnquant), read as what calibrate() takes.

Keys as MNN 3.6 reads them (tools/quantization/calibration.cpp): images are cut to a share of their middle and stretched to width and height
between corners (measured), and become (pixel - mean) * normal of pixels from 0 to 255, in the order of `format`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.data import Preparation
from qconvert.data.samples import Data
from qconvert.errors import FileAccessError, InvalidModelError, OptionError, name_file_in_errors
from qconvert.files import map_file
from qconvert.files.documents import integer, json_of, list_of, number, object_of, sort_of, text
from qconvert.files.names import require_there
from qconvert.graph import Array

_METHODS = {"KL": "mnn-kl", "ADMM": "mnn-admm", "EMA": "moving-average"}
_WEIGHTS = {"MAX_ABS": "max-abs", "ADMM": "mnn-admm"}
_KNOWN = frozenset((
    "path", "format", "mean", "normal", "width", "height", "center_crop_h", "center_crop_w", "used_image_num", "used_sample_num",
    "batch_size", "quant_bits", "feature_quantize_method", "weight_quantize_method", "feature_clamp_value", "weight_clamp_value",
    "winogradOpt", "skip_quant_op_names", "debug", "input_type", "inputs",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class MnnConfig:
    """What a configuration says, as arguments of calibrate().

    Attributes:
        data: where the samples are.
        options: the other arguments, by name.
        notes: what of it means nothing here.
    """

    data: Data
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_mnn_config(path: str | Path) -> MnnConfig:
    """Reads a configuration.

    Raises:
        FileAccessError: the file cannot be read.
        InvalidModelError: it is no JSON object, or a value is of the wrong sort.
        OptionError: it asks for what calibrate() does not do.
    """
    path = Path(path)
    with name_file_in_errors(path):
        found = json_of(bytes(map_file(path)), "the file")
        if not isinstance(found, dict):
            raise InvalidModelError(
                "is not a configuration of MNN's quantizer, which is a JSON object with the key path", rule="not-a-configuration"
            )
        return _config(_Values(found), path.parent)


class _Values:
    """The values of a configuration, each of its sort."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.found = found

    def get(self, name: str, sort: type, default: Any) -> Any:
        value = self.found.get(name, default)
        if sort is float:
            return number(value, name)
        if sort is int:
            return integer(value, name)
        if not isinstance(value, sort):
            raise InvalidModelError(f"is {sort_of(value)}; MNN's quantizer requires {sort.__name__}", where=name, rule="wrong-type")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(list_of(self.found.get(name, []), name, number))

    def word(self, name: str, known: Mapping[str, str]) -> str:
        given = self.get(name, str, next(iter(known)))
        if given not in known:
            raise OptionError(f"{name} is {given!r}, which is unknown", remedy=f"MNN has {', '.join(known)}.", rule="unknown-word")
        return known[given]


def _config(values: _Values, folder: Path) -> MnnConfig:
    data = _folder(values.get("path", str, ""), folder)
    bits, clamps = values.get("quant_bits", int, 8), [values.get(f"{side}_clamp_value", int, 127) for side in ("feature", "weight")]
    if bits != 8 or clamps[1] != 127 or not 0 < clamps[0] <= 127:
        reason = f"{bits} bits, activations clamped to {clamps[0]} and weights to {clamps[1]}"
        raise OptionError(
            f"{reason}; quantization requires 8 bits, and 127 for weights",
            remedy="Leave quant_bits and weight_clamp_value out.",
            rule="clamp-not-supported",
        )
    method = values.word("feature_quantize_method", _METHODS)
    options: dict[str, Any] = {
        "method": method,
        "weights_method": values.word("weight_quantize_method", _WEIGHTS),
        "skip": tuple(map(str, values.get("skip_quant_op_names", list, []))),
    }
    if method.startswith("mnn"):
        options["clamp"] = clamps[0]
    count = values.get("used_sample_num", int, values.get("used_image_num", int, 0))
    if count > 0:
        options["samples"] = count
    ignored = sorted({*values.found} - _KNOWN)
    notes = (f"MNN's quantizer knows no {', '.join(ignored)}",) if ignored else ()
    if values.get("input_type", str, "image") == "sequence":
        return MnnConfig(lambda: _sequence(data), options, notes)
    return MnnConfig(str(data), {**options, "preparation": _preparation(values)}, notes)


def _folder(text: str, folder: Path) -> Path:
    """The folder of data: MNN takes it from where it is run; where it is not there, it is next to the configuration."""
    if not text:
        raise InvalidModelError("the path of the data is missing", where="path", rule="no-data")
    here = Path(text)
    return here if os.path.exists(here) or here.is_absolute() else folder / here


def _preparation(values: _Values) -> Preparation:
    normal = values.numbers("normal")
    if any(value <= 0 for value in normal):
        raise OptionError("a factor is 0 or less; factors must be greater than 0", where="normal", rule="factor-not-positive")
    height, width = (values.get(name, int, 0) for name in ("height", "width"))
    share = tuple(values.get(name, float, 1.0) for name in ("center_crop_h", "center_crop_w"))
    return Preparation(
        mean=values.numbers("mean"),
        factor=normal,
        pixel_range=(0.0, 255.0),
        resize=(height, width) if height > 0 and width > 0 else "stretch",
        share=(share[0], share[1]),
        corners=True,
        colour=values.get("format", str, "BGR").lower(),
    )


def _sequence(folder: Path) -> Iterator[dict[str, Array]]:
    """Samples as MNN's converter takes them: in each folder input.json with names and shapes, and a text of numbers for each input."""
    require_there(folder)
    if not folder.is_dir():
        raise FileAccessError("is not a folder of samples", file=str(folder), rule="not-a-folder")
    for file in sorted(item / "input.json" for item in folder.iterdir() if (item / "input.json").is_file()):
        with name_file_in_errors(file):
            given = json_of(bytes(map_file(file)), "the file")
            inputs = given.get("inputs") if isinstance(given, dict) else None
            sample = dict(_values(file.parent, *item) for item in list_of(inputs, "inputs", lambda item, at: (item, at)))
        yield sample


def _values(sample: Path, item: Any, at: str) -> tuple[str, Array]:
    """The name of an input, and its values in a sample."""
    found = object_of(item, at, ("name", "shape"), item if isinstance(item, dict) else ())
    name, shape = text(found["name"], f"{at}.name"), list_of(found["shape"], f"{at}.shape", integer)
    file = sample / f"{name}.txt"
    require_there(file)
    try:
        return name, np.loadtxt(file, dtype=np.float32).reshape(shape)
    except (OSError, ValueError) as error:
        raise FileAccessError(f"cannot be read as a sample: {error}", file=str(file), rule="not-readable") from error
