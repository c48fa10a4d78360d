"""The keys of a graph's metadata. Formats carry them in their own metadata, so that a later reader finds them again."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from qconvert.errors import InvalidModelError

#: The format of the file that the graph was read from.
SOURCE_FORMAT = "source.format"
#: The kernels that the source was made for and that people have seen it run with, as `--kernels` names them, such as "litert:default":
#: how they round matters to passes. It is of the graph alone, and no ONNX file says it: what is written is made for other kernels.
SOURCE_KERNELS = "source.kernels"
#: Whose arithmetic the operators of a PyTorch file have: the engine and, after a comma, why it is that one (formats/torch/engines.py).
SOURCE_ENGINE = "source.engine"
#: The ONNX opset of that file.
SOURCE_OPSET = "source.opset"
#: What made that file, and its version.
SOURCE_PRODUCER = "source.producer"
#: The description that a .tflite file gives of itself.
SOURCE_DESCRIPTION = "source.description"
#: JSON: named entry points, where the result's format has none.
SOURCE_SIGNATURES = "source.signatures"
#: Prefix: metadata buffers of a .tflite file, by their names.
SOURCE_METADATA = "source.metadata."
#: What stands before such a buffer's content where it is no short text.
BASE64 = "base64:"
#: Prefix: files in the archive after a .tflite file, by their names.
SOURCE_FILES = "source.file."

#: JSON, tensor -> [scale, zero point] of each index: what the file states next to it and the kernels of its runtime do not use, as a bias
#: at another scale than input scale * weight scale.
IGNORED_SCALES = "source.ignored_scales"
#: JSON, state -> [container, shared name]: variables of a .tflite file that another name than the state's stands for.
VARIABLES = "source.variables"
#: JSON list: fake quantizations of a network that was trained with them; their scales are those that the file stores.
TRAINED_SCALES = "source.trained_scales"
#: JSON list: those of them whose observers are still on, so that each run in PyTorch changes their scales.
OBSERVED_SCALES = "source.observed_scales"
#: JSON list: what the file does not say and reading took for granted, in words.
ASSUMED = "source.assumed"
#: JSON list: constants that the file stores without their zeros, and the graph with them.
DENSIFIED = "source.densified"
#: JSON list: inputs whose shapes neither the file nor the user states, with the shapes that their first layers imply.
GUESSED_SHAPES = "source.guessed_shapes"
#: The type of all 8-bit activations of the first source, where a target stores them in another, or where it is a .tflite file of uint8.
ACTIVATIONS = "source.activations"
#: JSON list: tensors in another layout than in the first file of a chain of conversions, although their shape does not show it.
TRANSPOSED = "layout.transposed"
#: "exact" in a .pt2 file whose operators give the integers that they mean (formats/torch/writer.py).
NUMERICS = "torch.numerics"
#: JSON: which tensors hold the values of the source's (rewriting/claims.py). A claim: whoever uses it verifies it in values.
CORRESPONDENCE = "qconvert.correspondence"
#: JSON: operators that the writer decomposed as several (formats/reading/notes.py).
DECOMPOSED = "qconvert.decomposed"
#: JSON, tensor -> [scale, zero point], [scales, zero points, axis] or null: integers under another quantization than those that they are
#: (formats/onnx/noted_operators.py).
RELABELLED = "qconvert.relabelled"
#: JSON, tensor -> zero point: activations whose stored integers are the source's under the zero point 0; their float values are larger than
#: the source's by scale * zero point (passes/shift_to_symmetric.py).
SHIFTED = "qconvert.shifted"
#: JSON, output -> rounding: operators of dynamic range whose result computes otherwise; see passes/dynamic_range.py.
DYNAMIC_RANGE = "qconvert.dynamic_range"
#: JSON list: tensors that a writer padded for the operator after them, whose own padding it is.
FUSED_PADDING = "qconvert.fused_padding"
#: JSON, output -> attribute -> value: attributes that the result's format cannot state.
STATED_ATTRIBUTES = "qconvert.attributes"
#: JSON, constant -> [smallest, largest] stored value that is used, null for the type's own.
STATED_LIMITS = "qconvert.limits"
#: JSON list: inputs and outputs that are states, with their first values (graph/carried_states.py).
STATES = "qconvert.states"
#: JSON, bias -> scales: as the source states them, where the result's format implies others by a last bit.
STATED_BIAS_SCALES = "qconvert.bias_scales"

# Where a file came from (conversion/report.py).
VERSION = "qconvert.version"
#: By which rules the entries of this file are written: one that is renamed, or means something else, makes it another.
SCHEMA, SCHEMA_NUMBER = "qconvert.schema", "2"
SOURCE = "qconvert.source"
SOURCE_SHA256 = "qconvert.source_sha256"
SOURCE_DATA = "qconvert.source_data"
#: Before an option that named a file compared with the source, such as "graph": the file's name, and with "_sha256" after it its digest.
SIDE_FILE = "qconvert."
TARGET = "qconvert.target"
CHANGES = "qconvert.changes"
#: JSON: the passes named by the user and the options not at their defaults, so that the conversion can be repeated.
OPTIONS = "qconvert.options"
#: JSON, option -> value: what a network that was partitioned was read with.
READ = "qconvert.read"
#: The command line that makes the result run, where the target has one (Target.command), with names of files and no paths.
COMMAND = "qconvert.command"
#: JSON, tensor -> digest: those whose values or quantization a pass that is not exact has changed (rules/changed_values.py).
CHANGED = "qconvert.changed"
SCALES = "qconvert.scales"
#: JSON, region -> its target and how many operators it has, in a file of a partitioned network (partitioning/). What the regions are, the
#: file says in its own way: functions in ONNX, composites in TFLite.
REGIONS = "qconvert.regions"
#: JSON list: tensors that parts in .tflite files compute, of a network that was split. It is of the graph alone.
IN_TFLITE = "qconvert.in_tflite"
#: The name of the .tflite metadata buffer that holds all of these as JSON.
PROVENANCE = "qconvert"


#: Those whose JSON names tensors, or states: the keys of an object, or the elements of a list.
NAMING = (
    CHANGED, DENSIFIED, DYNAMIC_RANGE, FUSED_PADDING, IGNORED_SCALES, OBSERVED_SCALES, RELABELLED, SHIFTED, STATED_ATTRIBUTES,
    STATED_BIAS_SCALES, STATED_LIMITS, TRAINED_SCALES, TRANSPOSED, VARIABLES, IN_TFLITE,
)  # fmt: skip


@lru_cache(maxsize=64)
def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_T = TypeVar("_T")


def read_entry(metadata: Mapping[str, str], key: str, read: Callable[[Any], _T], what: str) -> _T | None:
    """Return what `read` makes of the JSON of an entry; None where there is no entry.

    Raises:
        InvalidModelError: the entry is not `what`.
    """
    text = metadata.get(key)
    try:
        return None if text is None else read(json.loads(text))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InvalidModelError(f"the metadata entry {key} is not {what}", rule="malformed-metadata") from error


def read_names(metadata: Mapping[str, str], key: str) -> frozenset[str]:
    """The names in the list that a key has; nothing where a file's metadata are no such list."""
    found = _parse(metadata.get(key, "[]"))
    return frozenset(name for name in found if isinstance(name, str)) if isinstance(found, list) else frozenset()


def read_entries(metadata: Mapping[str, str], key: str) -> dict[str, object]:
    """The entries of the object that a key has; nothing where a file's metadata are no such object."""
    found = _parse(metadata.get(key, "{}"))
    return dict(found) if isinstance(found, dict) else {}


def has_tflite_history(metadata: Mapping[str, str]) -> bool:
    """Whether a result is, or was made of, a .tflite file that a conversion made: its operators round as LiteRT's kernels do."""
    return SOURCE_METADATA + PROVENANCE in metadata or metadata.get(SOURCE_FORMAT) == "tflite"


def source_opset(metadata: Mapping[str, str]) -> int | None:
    """The opset of the ONNX file that a graph was read from; None of a graph from elsewhere."""
    opset = metadata.get(SOURCE_OPSET, "")
    return int(opset) if metadata.get(SOURCE_FORMAT) == "onnx" and opset.isdigit() else None


def find_layout_changes(before: Mapping[str, str], after: Mapping[str, str]) -> frozenset[str]:
    """The names that one of two graphs' metadata list as transposed and the other's do not: these are in different layouts."""
    return read_names(before, TRANSPOSED) ^ read_names(after, TRANSPOSED)


def origin(metadata: Mapping[str, str]) -> dict[str, object]:
    """What a file's own metadata say of the conversion that made it (VERSION, SOURCE, OPTIONS …); nothing if they say nothing.

    A .tflite file has them in a buffer of its own, PROVENANCE.
    """
    if VERSION in metadata:
        return dict(metadata)
    text = metadata.get(SOURCE_METADATA + PROVENANCE, "{}") if metadata.get(SOURCE_FORMAT) == "tflite" else "{}"
    try:
        found = json.loads(b64decode(text.removeprefix(BASE64)).rstrip(b"\0") if text.startswith(BASE64) else text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
