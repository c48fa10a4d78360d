"""Two models that are compared: the options with which their files are read, and diff(), which says how their graphs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.checkpoints.source import checkpoint_differences
from qconvert.conversion.checkpoints import holds_checkpoint, open_checkpoint
from qconvert.conversion.in_memory import Model, as_file
from qconvert.conversion.loading import load, source_format
from qconvert.errors import OptionError
from qconvert.graph import Graph
from qconvert.graph.metadata import OPTIONS, READ, origin
from qconvert.plugins import Format
from qconvert.plugins.options import ReadOptions, check_options
from qconvert.rules import differences


def load_pair(source: Path, result: Path, options: Mapping[str, Any], formats: tuple[str, str] = ("", "")) -> tuple[Graph, Graph]:
    """The graphs of a source and a result.

    Args:
        source, result: the files.
        formats: of both; "" where the suffix says it.
        options: of their readers, those that are given. Where they say nothing, the source is read as the result's metadata say it was.

    Raises:
        QConvertError: one cannot be read, or nobody takes an option.
    """
    before, after = source_format(source, formats[0]), source_format(result, formats[1])
    own, others = split_options(options, before, after)
    second = load(result, after.name, **others)
    return load(source, before.name, **{**read_noted_options(second.metadata, before), **own}), second


def split_options(options: Mapping[str, Any], source: Format, result: Format) -> tuple[dict[str, Any], dict[str, Any]]:
    """The user's options for the source's reader, and those for the result's: what both take is meant for the source.

    Raises:
        OptionError: neither takes one, or its value is wrong.
    """
    names = source.name if source is result else f"{source.name} or {result.name}"
    given = check_options(options, (*result.read_options, *source.read_options), f"nothing that reads {names}")
    own = {option.name for option in source.read_options}
    return {name: given[name] for name in given if name in own}, {name: given[name] for name in given if name not in own}


def read_noted_options(metadata: Mapping[str, str], source: Format) -> dict[str, Any]:
    """The options of its reader that the conversion of a source, or its partition, had, as its result's metadata say; none where these say
    nothing usable."""
    own = {option.name: option for option in source.read_options}
    said = {**metadata, **origin(metadata)}
    try:
        given = json.loads(str(said[READ])) if READ in said else json.loads(str(origin(metadata).get(OPTIONS, "{}")))["options"]
        return {name: own[name].value(value) for name, value in given.items() if name in own}
    except (OptionError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


@with_checked_arguments
def diff(a: Model, b: Model, *, exact: bool = False, a_format: str = "", b_format: str = "", **options: Unpack[ReadOptions]) -> list[str]:
    """What differs between two models, one line each; empty if their graphs are equal.

    Of two checkpoints (.safetensors, .gguf) the weights are compared, whatever container each is in, without options for a graph.

    Args:
        a, b: before and after: files, folders of checkpoints, bytes or graphs.
        exact: whether every name, the order and sources of operators, signatures and metadata count too.
        a_format, b_format: names of formats, if suffixes and contents do not determine them.
        options: of the readers; what both take is meant for the first. What is not given for it is what the second says of its conversion.

    Raises:
        QConvertError: one cannot be read, or nobody takes an option.
    """
    if isinstance(a, Graph) or isinstance(b, Graph):
        return differences.diff(load(a, a_format, **options), load(b, b_format), exact=exact)
    with as_file(a, a_format) as before, as_file(b, b_format) as after:
        files = [(path, source_format(path, format)) for path, format in ((before, a_format), (after, b_format))]
        if not options and all(holds_checkpoint(path, reader) for path, reader in files):
            return checkpoint_differences(*(open_checkpoint(path, reader) for path, reader in files))
        return differences.diff(*load_pair(before, after, options, (a_format, b_format)), exact=exact)
