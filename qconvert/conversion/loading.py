"""load(): a model file as a canonical graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.conversion.adapting import adapt_graph, pick_reader_options, pick_shared_options
from qconvert.conversion.in_memory import Model, as_file
from qconvert.errors import (
    FileAccessError,
    InvalidGraphError,
    InvalidModelError,
    OptionError,
    QConvertError,
    WrongFormatError,
    name_file_in_errors,
)
from qconvert.files import require_utf8
from qconvert.files.names import unreadable
from qconvert.graph import Graph
from qconvert.plugins import Format, format_named, format_of, formats, pass_named
from qconvert.plugins.options import READING, ReadOptions, check_options, fill_defaults
from qconvert.rules.validation import validate


@with_checked_arguments
def load(path: Model, format: str = "", **options: Unpack[ReadOptions]) -> Graph:
    """The canonical graph of a model file.

    Args:
        path: the file, or its content as bytes, or a graph, of which the options for every format are done.
        format: a format's name; by default the file's suffix decides, of bytes what they begin with.
        options: of the format's reader; `qconvert formats` lists them. Every format takes between ("in:out": a part of the network),
            input_shape, batch and rename (["old=new"]), in this order; names are those of the file.

    Raises:
        QConvertError: the file cannot be read, is damaged, or holds what is not covered. The error names it.
        WrongFormatError: it is of another format.
    """
    if isinstance(path, Graph):
        return adapt_graph(path, {name: value for name, value in check_options(options, READING, "a graph").items() if value})
    with as_file(path, format) as file:
        return _load_file(file, format, options)


def _load_file(path: Path, format: str, options: Mapping[str, Any]) -> Graph:
    reader = source_format(path, format)
    _require_network(path, reader)
    given = check_options(options, reader.read_options, f"nothing that reads {reader.name}")
    try:
        return adapt_graph(_read_normal_form(path, reader, fill_defaults(given, reader.read_options)), pick_shared_options(reader, given))
    except QConvertError as error:
        if isinstance(error, InvalidModelError) and (found := recognize_format(path, reader.name)):
            _require_network(path, format_named(found))
            raise WrongFormatError(
                f"the file is of the format {found}, not {reader.name}",
                found=found,
                remedy=_format_remedy(found),
                file=str(path),
                rule="wrong-format",
            ) from error
        error.file = error.file or str(path)
        raise


def _require_network(path: Path, reader: Format) -> None:
    if reader.read is None:
        scales = f"Its scales can: `qconvert apply FLOAT.onnx {path.name} -o RESULT.onnx`." if reader.read_encodings else ""
        raise OptionError(
            f"the format is {reader.name}, whose networks cannot be read", file=str(path), remedy=scales, rule="networks-not-read"
        )


def _read_normal_form(path: Path, reader: Format, options: Mapping[str, Any]) -> Graph:
    try:
        return normal_form(read_literal_graph(path, reader, options), reader)
    except InvalidGraphError as error:  # a rule that the file breaks, as the caller has made no graph
        raise InvalidModelError(error.reason, remedy=error.remedy, where=error.where, file=error.file, rule=error.rule) from error


def read_literal_graph(path: Path, reader: Format, options: Mapping[str, Any]) -> Graph:
    """What the reader of a format reads, literally; with the option "graph" the graph in that file, with the parameters in this one.

    Args:
        path: the file.
        reader: its format, which can be read.
        options: of its reader, each with a value.

    Raises:
        QConvertError: see load().
    """
    assert reader.read is not None
    options = pick_reader_options(reader, options)
    if reader.parameters is None or not options.get("graph"):
        graph = reader.read(path, options)
        if not isinstance(graph, Graph):  # of a plugin
            raise OptionError(
                f"the reader of {reader.name} returned {graph!r}"[:200],
                file=str(path),
                remedy="Return a qconvert.Graph.",
                rule="wrong-result",
            )
        return graph
    from qconvert.conversion.states import join_parameters

    parameters = reader.parameters(path, options)
    graph_file = Path(options["graph"])
    other = source_format(graph_file)
    shared = {option.name: options[option.name] for option in other.read_options if option.name in options and not option.about_graph}
    network = load(graph_file, **shared)
    with name_file_in_errors(f"{path} with {graph_file.name}"):
        graph = join_parameters(parameters, network, other.modules(graph_file) if other.modules is not None else {})
        return parameters.finished(pass_named("absorb_quantization").run(graph, None)[0])


def source_format(path: Path, format: str = "") -> Format:
    """The format of a model file: the one named, or that of its suffix.

    Args:
        path: the file.
        format: a format's name; "" where the suffix decides.

    Raises:
        FileAccessError: the suffix says nothing, and there is no such file.
        OptionError: there is no such format, or the suffix is that of none. What the file's content tells is in the error.
    """
    if format:
        return format_named(format)
    try:
        return format_of(path)
    except OptionError as error:
        if os.path.isdir(path):
            raise FileAccessError(
                "is a directory, not a model file", file=str(path), remedy=_suggest_model(path), rule="is-a-folder"
            ) from error
        if found := recognize_format(path):
            error.reason += f"; by its content it is a file of the format {found}"
            error.remedy = _format_remedy(found)
        raise


def _suggest_model(folder: Path) -> str:
    """A remedy that names the largest model file of a folder, of those that belong to no other (parts to a manifest); "" without one."""
    readers = {suffix: item for item in formats().values() if item.content == "model" for suffix in item.suffixes}
    found = [item for item in sorted(folder.iterdir()) if item.suffix.lower() in readers and item.is_file()]
    belonging: set[Path] = set()
    for item in found:
        reader = readers[item.suffix.lower()]
        with suppress(QConvertError):  # another file of this suffix
            belonging.update(reader.companions(item) if reader.companions is not None else ())
    found = [item for item in found if item not in belonging]
    return f"Name a file in it, such as {max(found, key=lambda item: item.stat().st_size)}." if found else ""


def _format_remedy(format: str) -> str:
    return f"Give it the suffix {formats()[format].suffixes[0]}, or name the format (--from {format})."


def recognize_format(path: Path, tried: str = "") -> str:
    """The name of the format that a file is of by its content, if it is another than the one that was tried; "" if nobody knows."""
    require_utf8(path)
    try:
        os.stat(path)
        if not path.is_file():  # a pipe would be waited for
            return ""
        with path.open("rb") as stream:
            start = stream.read(64)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    names = [
        item.name
        for item in formats().values()
        if (item.recognizes is not None and item.recognizes(start)) or (item.holds is not None and item.holds(path))
    ]
    return "" if tried in names else next(iter(names), "")


def normal_form(graph: Graph, source: Format) -> Graph:
    """What a reader read, after the passes that its format names; validated.

    Raises:
        InvalidGraphError: the file contradicts itself.
    """
    for item in map(pass_named, source.normal_form):
        graph, _ = item.run(graph, None)
        if graph.functions:
            graph = replace(graph, functions={name: item.run(inner, None)[0] for name, inner in graph.functions.items()})
    validate(graph)
    return graph
