"""A checkpoint as a checkpoint of another tool: convert() to a format that has no graph."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qconvert.arguments import Progress
from qconvert.checkpoints.config import FILE_OF_MODELOPT, FILES_OF_CONFIG
from qconvert.checkpoints.repacking import Repacked
from qconvert.checkpoints.safetensors import is_checkpoint
from qconvert.checkpoints.source import CheckpointSource
from qconvert.conversion.report import ConversionReport
from qconvert.errors import FileAccessError, OptionError, format_count
from qconvert.files import whole_file, whole_folder
from qconvert.plugins import Change, Cost, Format, name_changes
from qconvert.plugins.options import check_options, fill_defaults
from qconvert.plugins.results import describe_worst
from qconvert.version import __version__

#: Costs that are listed, the highest first.
_LISTED = 1000


def repacks(source: Path, writer: Format, options: Mapping[str, Any]) -> bool:
    """Whether a conversion to a format of checkpoints is of a checkpoint alone: its result has no graph, or none is given for it."""
    return writer.write is None or (not options.get("graph") and is_checkpoint(source))


def holds_checkpoint(path: Path, reader: Format) -> bool:
    """Whether a file may be opened as a checkpoint, without a graph."""
    return is_checkpoint(path) or reader.open_checkpoint is not None


def open_checkpoint(path: Path, reader: Format) -> CheckpointSource:
    """The checkpoint of a file that holds one.

    Raises:
        QConvertError: it cannot be read, is damaged, or has layers in a form that is not covered.
    """
    return CheckpointSource.of(path) if reader.open_checkpoint is None else reader.open_checkpoint(path)


def converted_checkpoint(
    source: Path,
    result: Path,
    reader: Format,
    writer: Format,
    options: Mapping[str, Any],
    *,
    force: bool,
    target: str,
    passes: Sequence[str],
    progress: Progress,
) -> ConversionReport:
    """Convert the checkpoint that a file belongs to; see convert().

    Raises:
        QConvertError: the source is no checkpoint, has weights for which the result has no room, or cannot be read or written.
    """
    started = time.perf_counter()
    assert writer.repack is not None
    given = "a target" if target else "a pass" if passes else "a graph" if options.get("graph") else ""
    if given:
        raise OptionError(
            f"{given} is given, and a checkpoint of the format {writer.name} has no operators",
            remedy="Leave it out, or name a result with operators, such as model.onnx.",
            rule="option-not-applicable",
        )
    chosen = fill_defaults(check_options(options, writer.write_options, f"nothing that writes {writer.name}"), writer.write_options)
    if not holds_checkpoint(source, reader):
        raise OptionError(
            f"the source is no checkpoint, from which the format {writer.name} is made",
            file=str(source),
            remedy="Name the folder of a checkpoint, or its .safetensors file.",
            rule="not-a-checkpoint",
        )
    if result.resolve() == source.parent.resolve():
        raise OptionError(
            "the result would be written into the source's folder",
            file=str(result),
            remedy="Name another folder.",
            rule="source-overwritten",
        )
    if not writer.suffixes and result.is_dir() and not force and any(result.iterdir()):
        raise FileAccessError(
            "exists, and is not empty", file=str(result), remedy="Name another folder, or replace it with --force.", rule="exists"
        )
    checkpoint = open_checkpoint(source, reader)
    if writer.suffixes:
        named = [Path(chosen[option.name]) for option in writer.write_options if option.is_file and chosen[option.name]]
        with whole_file(result, force=force, reads=[source, *named]) as file:
            found = writer.repack(checkpoint, file, chosen, progress)
        return _report(source, result, reader, writer, found, [], started)
    old = [item.name for item in result.iterdir() if _is_of_checkpoint(item)] if result.is_dir() else []
    notes: list[str] = []
    made_of = _describe_conversion(source, writer, chosen)
    with whole_folder(result, old, force=force, reads=[source], tell=notes.append, made_of=made_of) as folder:
        found = writer.repack(checkpoint, folder, chosen, progress)
    return _report(source, result, reader, writer, found, notes, started)


def _describe_conversion(source: Path, writer: Format, options: Mapping[str, Any]) -> str:
    """What says whether another run makes the same files: the source's files, the format, its options and the version."""
    read = [file for file in sorted(source.parent.iterdir()) if file.suffix in (source.suffix, ".json") and file.is_file()]
    files = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in read]
    return json.dumps(
        {"version": __version__, "format": writer.name, "options": dict(options), "source": source.name, "files": files}, default=str
    )


def _report(
    source: Path, result: Path, reader: Format, writer: Format, found: Repacked, notes: list[str], started: float
) -> ConversionReport:
    costs = sorted(
        (Cost(layer, db, None) for layer, db in found.costs.items() if db is not None), key=lambda cost: cost.sqnr_db or 0
    )  # fmt: skip
    changes = list(name_changes([*notes, *found.notes], by=writer.name))
    if found.costs:
        worst = f": {describe_worst(costs)}" if costs else ""
        text = f"{format_count(len(found.costs), 'layer')} took the nearest weights that have room (--requantize){worst}"
        changes.append(Change(text, costs=tuple(costs[:_LISTED]), by=writer.name, user_named=True))
    if found.dropped:
        how = next(iter(found.dropped.values()))
        text = f"data of {format_count(len(found.dropped), 'layer')} stay float, which were rounded to {how} (--requantize)"
        changes.append(Change(text, costs=tuple(Cost(layer, None, None) for layer in found.dropped), by=writer.name, user_named=True))
    return ConversionReport(
        source=str(source),
        result=str(result),
        source_format=reader.name,
        result_format=writer.name,
        target="",
        operators={},
        quantized=True,
        on_floats={},
        changes=tuple(changes),
        kept=dict(found.counts),
        seconds=time.perf_counter() - started,
    )


def _is_of_checkpoint(file: Path) -> bool:
    """Whether a file of a folder that is replaced would contradict the new checkpoint, if it stayed."""
    return file.name.endswith((".safetensors", ".safetensors.index.json")) or file.name in (*FILES_OF_CONFIG, FILE_OF_MODELOPT)
