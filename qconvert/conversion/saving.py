"""save(): a canonical graph as a model file, and its scales in a file next to it where an option of the writer asks for that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from qconvert.arguments import with_checked_arguments
from qconvert.errors import InternalError, OptionError, QConvertError, UnsupportedError, format_count, quote_some
from qconvert.files import require_writable, require_writable_folder, whole_file, whole_folder
from qconvert.graph import Graph, Tensor, integer_range
from qconvert.plugins import Change, Format, Target, format_named, format_of, formats, name_changes, target_named
from qconvert.plugins.options import check_options, fill_defaults
from qconvert.rewriting.control_flow import without_calls
from qconvert.rules.validation import validate


class ScalesFile(NamedTuple):
    """A file of scales next to a model.

    Attributes:
        option: the name of the option that asks for it.
        path: the file.
        writer: its format.
    """

    option: str
    path: Path
    writer: Format

    @classmethod
    def of(cls, writer: Format, options: Mapping[str, Any]) -> ScalesFile | None:
        """What the options of a writer of models ask for; None if the model has its scales itself.

        Raises:
            OptionError: an option of such a file is given without the file.
        """
        for option in writer.write_options:
            if not option.scales:
                continue
            encodings = format_named(option.scales)
            if options.get(option.name):
                return cls(option.name, Path(options[option.name]), encodings)
            idle = [own.name for own in encodings.write_options if options.get(own.name, own.default) != own.default]
            if idle:
                reason = f"--{idle[0].replace('_', '-')} is given without --{option.name.replace('_', '-')}, whose file it is about"
                raise OptionError(
                    reason, remedy=f"Name the file with --{option.name.replace('_', '-')}, or leave it out.", rule="idle-option"
                )
        return None

    def require_place(self, model: Path, *, force: bool, reads: Iterable[Path]) -> None:
        """Raises what whole_file() would where the file cannot be put, or is the model's."""
        if os.path.realpath(self.path) == os.path.realpath(model):
            raise OptionError(
                "model and scales would be written to this file",
                file=str(model),
                remedy="Give the scales a name of their own.",
                rule="same-file-twice",
            )
        require_writable(self.path, force=force, reads=reads)

    @contextmanager
    def extract_to_file(
        self, graph: Graph, options: Mapping[str, Any], notes: list[Change], *, force: bool, reads: Iterable[Path]
    ) -> Iterator[Graph]:
        """The graph in float, to be written in the block; the file of scales is moved into place when the block succeeds.

        Args:
            graph: quantized.
            options: of the model's writer, which has those of the file too.
            notes: gets what the file's writer says.
            force, reads: as of whole_file().

        Raises:
            QConvertError: the file cannot hold the scales.
        """
        from qconvert.encodings import extract_encodings

        real, found = extract_encodings(graph)
        if not found.entries:
            raise UnsupportedError(
                "no tensor of the model is quantized, so that there are no scales to write", file=str(self.path), rule="nothing-quantized"
            )
        validate(real)
        assert self.writer.write_encodings is not None
        with whole_file(self.path, force=force, reads=reads) as temporary:
            said = self.writer.write_encodings(found, real, temporary, fill_defaults(options, self.writer.write_options))
            notes += name_changes(said, by=self.writer.name)
            yield real


def target_with_scales(target: Target | None, writer: Format, scales: ScalesFile | None) -> Target | None:
    """The target of a conversion whose scales stand in a file next to the model, or in the model.

    Raises:
        OptionError: the target is for scales in a file, and none is named.
    """
    if target is None:
        return None
    if scales is not None:
        return target_named(target.with_scales) if target.with_scales else target
    if target.needs_scales:
        flags = " or ".join(f"--{option.name.replace('_', '-')} FILE" for option in writer.write_options if option.scales)
        raise OptionError(
            f"the target {target.name} keeps its scales in a separate file", remedy=f"Name it: {flags}.", rule="scales-file-missing"
        )
    return target


@with_checked_arguments
def save(
    graph: Graph,
    path: str | Path,
    format: str = "",
    *,
    force: bool = False,
    provenance: Mapping[str, str] | None = None,
    reads: Iterable[Path] = (),
    **options: Any,
) -> tuple[Change, ...]:
    """Writes a graph as it is: no pass is run. The file, or folder, appears whole or not at all.

    Return, as Changes, the notes of the format's writer, and which files of an earlier model were removed.

    Args:
        graph: what to write.
        path: the file.
        format: a format's name; by default the file's suffix decides.
        force: whether an existing file may be replaced.
        provenance: where the graph came from, for the file's metadata.
        reads: files that must not be replaced, even with `force`: those that the graph was made from.
        options: of the format's writer, such as opset; `qconvert formats` lists them.

    Raises:
        QConvertError: the graph breaks an invariant, the format cannot hold it, or the file cannot be written.
        InternalError: what the writer made is not a valid file.
    """
    validate(graph)
    writer = format_named(format) if format else format_of(Path(path))
    path = writer.result_path(path)
    try:
        return write_file(graph, path, writer, force=force, provenance=provenance, reads=reads, **options)
    except UnsupportedError as error:
        error.remedy = error.remedy or "qconvert.convert(graph, path) fits a graph to a target first."
        raise


def write_file(
    graph: Graph,
    path: Path,
    writer: Format,
    *,
    force: bool = False,
    provenance: Mapping[str, str] | None = None,
    reads: Iterable[Path] = (),
    judge: Callable[[Path, Graph, Any], None] = lambda path, graph, checked: None,
    **options: Any,
) -> tuple[Change, ...]:
    """What save() does with a graph that is known to be valid; `judge` may refuse the written file.

    It gets the file, the graph that was written there, and what the check of its format returned.
    """
    if writer.write is None:
        raise OptionError(f"the format is {writer.name}, which cannot be written", file=str(path), rule="format-not-written")
    given = check_options(options, writer.write_options, f"nothing that writes {writer.name}")
    chosen = {**fill_defaults(given, writer.write_options), "provenance": dict(provenance or {})}
    if graph.functions and "functions" not in writer.scopes:
        graph = without_calls(graph)
    require_entries(graph, writer)
    _require_scopes(graph, writer)
    scales = ScalesFile.of(writer, chosen)
    if scales is None:
        return _write_in_place(graph, path, writer, chosen, judge, force=force, reads=reads)
    reads, said = tuple(reads), list[Change]()
    scales.require_place(path, force=force, reads=reads)
    with scales.extract_to_file(graph, chosen, said, force=force, reads=(*reads, path)) as real:
        written = _write_in_place(real, path, writer, chosen, judge, force=force, reads=(*reads, scales.path))
    return (*said, *written)


def _write_in_place(
    graph: Graph,
    path: Path,
    writer: Format,
    options: Mapping[str, Any],
    judge: Callable[[Path, Graph, Any], None],
    *,
    force: bool,
    reads: Iterable[Path],
) -> tuple[Change, ...]:
    """Writes a graph with checked options to a temporary path, and renames that to `path`."""
    assert writer.write is not None
    _require_ranges(graph, writer)
    notes: list[Change | str] = []
    placed = (
        whole_folder(path, writer.folder, force=force, reads=reads, tell=notes.append)
        if writer.makes_folder(path)
        else whole_file(path, force=force, reads=reads, tell=notes.append)
    )
    with placed as temporary:
        said = name_changes(writer.write(graph, temporary, options), by=writer.name)
        judge(temporary, graph, _check(temporary, writer))
    return (*name_changes(notes, by=writer.name), *said)


def require_place(path: Path, writer: Format, *, force: bool = False, reads: Iterable[Path] = ()) -> None:
    """Raises what write_file() would where a result cannot be put, before anything is done."""
    if writer.makes_folder(path):
        require_writable_folder(path, writer.folder, force=force, reads=reads)
    else:
        require_writable(path, force=force, reads=reads)


def _check(path: Path, writer: Format) -> Any:
    """What the check of a format returns; raises InternalError where what was written is not sound, and nothing is left of it then."""
    if writer.check is None:
        return None
    try:
        return writer.check(path)
    except QConvertError as error:
        raise InternalError(f"what is written as {writer.name} is not valid: {error.reason}", where=error.where, rule=error.rule) from error


def _require_scopes(graph: Graph, writer: Format) -> None:
    """Functions and states stand next to the operators: a format that has no place for them would lose them without a word."""
    for what, names, further in (
        ("functions", graph.functions, ""),
        ("states", graph.states, ", or make inputs and outputs of states (pass states_to_io)"),
    ):
        if names and what not in writer.scopes:
            reason = f"files of the format {writer.name} cannot hold {what}: {quote_some(names, 3)}"
            runnable = [item for item in formats().values() if item.write is not None and item.default_target and what in item.scopes]
            raise UnsupportedError(
                reason,
                remedy=f"Write a {' or '.join(item.suffixes[0] for item in runnable)} file{further}.",
                rule="scopes-not-writable",
            )


def require_entries(graph: Graph, writer: Format) -> None:
    """Refuse a graph with several entry points where a file has one: it would lose the others without a word.

    Raises:
        UnsupportedError: the keys of those that have no place.
    """
    keys = [signature.key for signature in graph.signatures if signature.function]
    if keys and "signatures" not in writer.scopes:
        entered = [signature.key for signature in graph.signatures if not signature.function]
        own = f"in addition to {quote_some(entered, 3)}" if entered else "in addition to the network's own"
        reason = f"files of the format {writer.name} have one entry point, and the model has {quote_some(keys, 3)} {own}"
        raise UnsupportedError(
            reason,
            remedy="Choose one (--signature KEY of a .tflite file), or write a file for each (--signature all).",
            rule="several-entry-points",
        )


def _require_ranges(graph: Graph, writer: Format) -> None:
    """An activation that uses a part of its type saturates there; a format that cannot state it would compute something else.

    Constants lose nothing: their integers are within the range anyway.
    """
    if writer.narrow_ranges:
        return
    narrow = [tensor.name for tensor in graph.tensors.values() if not tensor.is_constant and _is_narrow(tensor)]
    if narrow:
        raise UnsupportedError(
            f"{format_count(len(narrow), 'tensor', 'use')} a part of their type's range, which a {writer.name} file cannot "
            f"state: {quote_some(narrow, 3)}",
            remedy="Write a .qgraph file, or leave quant_min and quant_max out.",
            rule="range-not-writable",
        )


def _is_narrow(tensor: Tensor) -> bool:
    """Whether a part of the type's range is left out. Small floats, which have no such range, state no limits."""
    q = tensor.quantization
    if q is None or (q.quant_min is None and q.quant_max is None):
        return False
    return q.limits(tensor.dtype) != integer_range(tensor.dtype)
