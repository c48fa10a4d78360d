"""Options: declared once by a pass or a format, and used alike by the Python functions, the command line and plugins; and those of the
built-in formats and passes as types, so that an editor completes them and a type checker reads them (plugins may declare further ones).
"""

from __future__ import annotations

import json
import keyword
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, TypedDict

from qconvert.errors import OptionError, format_count

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_ARTICLES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a pass or a format.

    Attributes:
        name: as in `-O name=value` and, of formats and if it is common, with dashes, as a flag. Passes and formats that declare one name
            share its value.
        type: str, int, float or bool.
        default: what holds when nobody gives a value.
        help: one line for `--help` and `qconvert passes`.
        choices: the values that it may have; empty for any of its type. The default is always one.
        least: of a number, the smallest that may be given; the default may be smaller, and stands for "not given" then.
        by_hand: the value when a user names the pass himself, in `--pass`; None for the default.
        common: of a pass, whether everybody needs it, so that conversions have a flag for it; others are given with `--pass` or `-O`.
        border: whether it is about the network's inputs and outputs; functions inside it keep the default.
        is_file: whether it names a file that is read. What is written says the file's name and digest, and no path.
        about_graph: of a format's reader, whether it is about a graph next to a file that has none.
        many: whether it may be given several times: its values are a tuple of texts, and a flag is repeatable.
        scales: of a format's writer, the name of a format of encodings: the option names a file of these, into which the scales go, and the
            model is written in float. What is written says the file's name, and no path.
    """

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[Any, ...] = ()
    least: int | None = None
    by_hand: Any = None
    common: bool = False
    border: bool = False
    is_file: bool = False
    about_graph: bool = False
    many: bool = False
    scales: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or keyword.iskeyword(self.name) or self.type not in _ARTICLES:
            raise ValueError(f"an option has a name like io_layout and is str, int, float or bool, not {self.name!r} and {self.type!r}")

    def value(self, given: Any) -> Any:
        """A value as its type, from that type or from text.

        Raises:
            OptionError: it is none, or not one of the choices.
        """
        if self.many:
            return tuple(self._one(item) for item in (given if isinstance(given, list | tuple) else (given,)))
        return self._one(given)

    def _one(self, given: Any) -> Any:
        found = self._convert_type(given)
        if found is None:
            raise OptionError(f"the option {self.name} takes {_ARTICLES[self.type]}, not {given!r}", rule="wrong-type")
        if self.choices and found not in self.choices and found != self.default:
            known = " or ".join(str(choice) for choice in self.choices if choice != "")
            raise OptionError(f"the option {self.name} is {found!r}", remedy=f"Use {known}.", rule="unknown-value")
        if self.least is not None and found < self.least and found != self.default:
            raise OptionError(f"the option {self.name} is {found!r}; it is {self.least} or more", rule="too-small")
        return found

    def _convert_type(self, given: Any) -> Any:
        if self.type is bool:
            return given if isinstance(given, bool) else _WORDS.get(str(given).lower())
        if isinstance(given, bool):
            return None
        if isinstance(given, self.type):
            return given
        if (self.is_file or self.scales) and isinstance(given, os.PathLike):
            return os.fspath(given)
        try:
            return self.type(given) if isinstance(given, str) else None
        except ValueError:
            return None


#: What passes and writers share: whether results are to be equal to those of the source's kernels.
NUMERICS = Option(
    "numerics",
    str,
    "exact",
    "Which form operators get: exact (equal to the source's kernels where that is cheap), strict (wherever it is known) or fast.",
    ("exact", "strict", "fast"),
    common=True,
)
#: What form of ONNX is written; QONNX has nodes of its own for what a pass may write otherwise. Other formats have forms of their own.
FORM = Option(
    "form", str, "", "ONNX: qdq (the default), qoperator or qonnx; PyTorch: program (.pt2) or modules (.pt, .ptl).",
    ("qdq", "qoperator", "qonnx"),
)  # fmt: skip
#: Of ONNX's writer, and of the pass that merges pixels where weights may be signed.
WEIGHTS_BY_CPU = Option(
    "weights_by_cpu", bool, False, "ONNX: onnxruntime (from 1.17 on) chooses unsigned or signed weights by the CPU, when it loads."
)

#: Options of the writer of TensorRT's calibration caches, and of the writer of the model next to such a cache.
CACHE = (
    Option("trt_version", str, "10.3.0", "The version of TensorRT that is to take a calibration cache; another refuses it."),
    Option(
        "trt_calibrator", str, "EntropyCalibration2", "The calibrator that is to take it; trtexec has EntropyCalibration2.",
        ("EntropyCalibration2", "MinMaxCalibration", "EntropyCalibration", "LegacyCalibration"),
    ),
)  # fmt: skip

#: What every reader takes, besides its own: what is asked of a graph once it is read (conversion/adapting). A reader that declares an
#: option of one of these names itself does what it asks for.
READING = (
    Option("subgraph", str, "", "The part of the network between tensors: in:out, several names separated by commas."),
    Option("input_shape", str, "", "Sizes of inputs, such as 1,3,224,224 or x=1,3,224,224; y=batch,10."),
    Option("batch", int, 0, "How many samples each run takes, along the first axis of every input.", least=1),
    Option("rename", str, (), "Another name for an input, an output or an inner tensor: old=new; repeatable.", many=True),
)


#: Of an input, as --input-shape states them; a size that stays open has a name.
Sizes = tuple[int | str, ...]
#: A size that no tensor has.
_LARGEST_SIZE = 2**40


def parse_input_shapes(text: str, inputs: Sequence[str] | None = None) -> dict[str | int, tuple[Sizes, str]]:
    """Return the sizes that --input-shape states, and the type after a colon, "" for none.

    Args:
        text: "1,3,224,224" in the order of the inputs, or each after a name and "=", with ";" between: "x=1,3,224,224; y=batch,10:int64".
        inputs: names of the inputs, for a file that says their types itself; None where they are not known yet.

    Returns:
        By the name of the input; without `inputs`, by its place where no name stands before it.

    Raises:
        OptionError: it is no such text, or names no input.
    """
    found: dict[str | int, tuple[Sizes, str]] = {}
    listed, entry = 0, ""
    for part in text.split(";"):
        entry = f"{entry};{part}" if entry else part.strip()
        before, equals, rest = entry.rpartition("=")
        sizes, colon, kind = rest.partition(":")
        name = before.strip()
        shape = _parse_sizes(sizes) if entry and (inputs is None or not colon) else None
        if shape is None or (equals and inputs is not None and name not in inputs):
            continue  # names may have semicolons
        if not equals and inputs is not None and listed >= len(inputs):
            raise OptionError(
                f"--input-shape has {format_count(listed + 1, 'shape')}; the model has {format_count(len(inputs), 'input')}",
                rule="too-many-shapes",
            )
        key = name if equals else listed if inputs is None else inputs[listed]
        listed += not equals
        if found.setdefault(key, (shape, kind.strip())) != (shape, kind.strip()):
            raise OptionError(f"--input-shape has two shapes for {key!r}", rule="shape-twice")
        entry = ""
    if entry:
        raise _shape_error(entry, inputs)
    return found


def _parse_sizes(text: str) -> Sizes | None:
    items = [item.strip() for item in text.split(",")] if text.strip() else []
    numbers = [int(item) if item.isascii() and item.isdecimal() else -1 for item in items]
    if not all(0 <= number < _LARGEST_SIZE or item.isidentifier() for item, number in zip(items, numbers, strict=True)):
        return None
    return tuple(item if number < 0 else number for item, number in zip(items, numbers, strict=True))


def _shape_error(entry: str, inputs: Sequence[str] | None) -> OptionError:
    name, equals, sizes = entry.rpartition("=")
    if equals and inputs is not None and _parse_sizes(sizes) is not None:
        from qconvert.graph.names import quote_nearest  # without numpy until something is wrong

        return OptionError(
            f"--input-shape names no input: {quote_nearest([name.strip()], inputs)}",
            remedy=f"Inputs: {', '.join(map(repr, inputs[:8]))}.",
            rule="unknown-input",
        )
    return OptionError(
        f"--input-shape {entry.strip()!r} has a size that is neither a number below 2^40 nor a name",
        remedy="Write --input-shape 1,3,224,224, or --input-shape 'x=1,3,224,224; y=1,10' for several inputs.",
        rule="not-a-size",
    )


def is_for_every_format(option: Option) -> bool:
    """Whether an option is one of READING itself; a reader's own may be declared alike."""
    return any(option is item for item in READING)


def parse_options(texts: Sequence[str], written: str = "-O name=value") -> dict[str, str]:
    """`name=value` texts as a mapping; raises OptionError for one without "=", or a name that stands twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise OptionError(f"{text!r} is not an option", remedy=f"Write {written}.", rule="malformed-option")
        if name in found:
            raise OptionError(f"the option {name} is given twice", rule="duplicate-option")
        found[name] = value.strip()
    return found


def check_options(given: Mapping[str, Any], declared: Iterable[Option], who: str) -> dict[str, Any]:
    """The values given, each as its type.

    Args:
        given: name -> value or text.
        declared: every option that may be given.
        who: who would have to declare them, for the error, such as "no pass" or "nothing that writes onnx".

    Raises:
        OptionError: one is unknown, or its value is wrong.
    """
    known = {option.name: option for option in declared}
    unknown = [name for name in given if name not in known]
    if unknown:
        listed = ", ".join(sorted(known)) or "none"
        raise OptionError(f"{who} takes the option {unknown[0]!r}", remedy=f"Known options: {listed}.", rule="unknown-option")
    return {name: known[name].value(value) for name, value in given.items()}


def pick_declared(given: Mapping[str, Any], declared: Iterable[Option]) -> dict[str, Any]:
    """Of the values given those of options that are declared."""
    names = {option.name for option in declared}
    return {name: value for name, value in given.items() if name in names}


def fill_defaults(given: Mapping[str, Any], declared: Iterable[Option], *, by_hand: bool = False) -> dict[str, Any]:
    """A value for each option of one pass or format: the one given, or the default."""
    found: dict[str, Any] = {}
    for option in declared:
        default = option.by_hand if by_hand and option.by_hand is not None else option.default
        found[option.name] = given.get(option.name, default)
    return found


def json_object(name: str, text: str) -> dict[str, Any]:
    """The JSON object that is the value of an option. Raises OptionError if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the option {name} is not JSON: {error}", rule="not-json") from error
    if not isinstance(found, dict):
        raise OptionError(f"the option {name} is not a JSON object", rule="not-json")
    return found


_File = str | PathLike[str]


class ReadOptions(TypedDict, total=False):
    """Options of whatever reads a model: those of every format, then those of TFLite, PyTorch and MNN."""

    subgraph: str
    input_shape: str
    batch: int
    rename: tuple[str, ...] | list[str]
    signature: str
    graph: _File
    modules: str
    oneflow: str
    round_data: bool
    engine: Literal["", "x86", "fbgemm", "onednn", "qnnpack"]
    mnn: _File


class ConvertOptions(ReadOptions, total=False):
    """Options of a conversion: those of reading, of writing ONNX, PyTorch and MNN, and of passes."""

    opset: int
    external_data: bool
    form: Literal["", "qdq", "qoperator", "qonnx", "program", "modules"]
    numerics: Literal["exact", "strict", "fast"]
    requantize: bool
    guards: bool
    weights_by_cpu: bool
    calibration_cache: _File
    trt_version: str
    trt_calibrator: Literal["EntropyCalibration2", "MinMaxCalibration", "EntropyCalibration", "LegacyCalibration"]
    freeze: bool
    float_layers: str
    pipeline: Literal["json", "binary"]
    dump: bool
    no_mnn: bool
    custom: Literal["carry", "refuse", "keep"]
    io_layout: Literal["", "nchw", "nhwc"]
    io: Literal["", "float", "integer"]
    no_float: bool
    biases: Literal["round", "keep"]
    dynamic: Literal["", "keep", "real"]
    encodings: _File
    encodings_options: str
    fill: Literal["none", "infer"]
    range_dtype: Literal["int8", "uint8", "int16", "uint16"]
    unroll: int
    tables: Literal["missing", "chains", "chains16"]
    scope: Literal["asked", "all"]
    edges: Literal["keep", "change"]
    zero_points: Literal["shift", "symmetric"]
    rounding: Literal["up", "nearest", "mse"]
    granularity: Literal["axis", "tensor"]
    scheme: Literal["types", "symmetric", "affine"]
    reduce: Literal["weights", "activations", "both"]
    weight_bits: Literal[0, 4, 8, 16]
    activation_bits: Literal[0, 4, 8, 16]
    block_size: Literal[0, 16, 32, 64, 128, 256]
    pairs: Literal["every", "sparse"]
    fixed_point: Literal["single", "away", "double"]
