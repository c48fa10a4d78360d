"""partition(): a network cut into the largest regions that targets take, and the rest, written as one file or as files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from qconvert.arguments import with_checked_arguments
from qconvert.conversion import load
from qconvert.conversion.converting import Given
from qconvert.conversion.judging import Declared, refuse_losses
from qconvert.conversion.loading import source_format as source_format_of
from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.conversion.report import noted_options, provenance
from qconvert.conversion.saving import require_place, write_file
from qconvert.errors import OptionError
from qconvert.graph import Graph, drop_keys
from qconvert.graph.metadata import OPTIONS, READ, REGIONS
from qconvert.partitioning.driver import Cut, Unwritable, cut, resolve_targets
from qconvert.partitioning.splitting import RegionsRefusedError, require_folder, require_parts, split_up
from qconvert.partitioning.types import Partition
from qconvert.plugins import Format, Target, format_named, format_of, target_named
from qconvert.plugins.options import ReadOptions, check_options, pick_declared
from qconvert.targets.audit import refuse_violations


@with_checked_arguments
def partition(
    model: str | Path | Graph,
    targets: str | Target | Sequence[str | Target],
    result: str | Path = "",
    *,
    split: str | Path = "",
    fallback: str = "ort-x86",
    min_ops: int = 1,
    min_macs: int = 0,
    lossless: bool = False,
    source_format: str = "",
    result_format: str = "",
    force: bool = False,
    **options: Unpack[ReadOptions],
) -> Partition:
    """Cuts a network into the largest connected, convex regions that targets take, and the rest.

    A target takes an operator, or a group that it declares, if its own passes fit it and the target accepts the result. A Dequantize is in
    the region of its reader, a Quantize in that of the operator before it. No two regions of a target can be joined.

    Args:
        model: a model file, or a graph.
        targets: a target or its name, or several by priority: each takes operators that those before it left.
        result: where the partitioned graph goes: a function for each region (in ONNX a local function, in TFLite a composite); "" for
            nowhere. Storage and layout stay the source's where the format allows it.
        split: a folder for each region and each part of the rest as files of their own, and manifest.json, which a check runs; "" for none.
        fallback: the target that files of the rest are for.
        min_ops, min_macs: regions with fewer operators (conversions apart) or products go back.
        lossless: whether operators of which a target's passes change a value are left out; else the limit is that of convert().
        source_format, result_format: names of formats; by default the suffixes decide.
        force: whether existing results may be replaced.
        options: of the source's reader and of the result's writer.

    Raises:
        QConvertError: anything that the user can cause; nothing is written then.

    Example:
        >>> found = qconvert.partition("model.tflite", ["my-npu", "tensorrt"], split="parts")
        >>> [(region.target, region.size) for region in found.regions]
    """
    listed = resolve_targets([targets] if isinstance(targets, str | Target) else list(targets))
    source = None if isinstance(model, Graph) else Path(model)
    reads = () if source is None else (source,)
    writer = None if not result else format_named(result_format) if result_format else format_of(Path(result))
    place = None if writer is None else writer.result_path(result)
    if place is not None and writer is not None:
        require_place(place, writer, force=force, reads=reads)
    if split:
        require_folder(Path(split), force=force)
        require_parts([*listed, target_named(fallback)])
    reader = None if source is None else source_format_of(source, source_format)
    given = _split_options(options, reader, writer)
    graph = model if isinstance(model, Graph) else load(model, source_format, **given.read)
    unwritable: list[Unwritable] = []
    while True:
        found = cut(graph, listed, min_ops=min_ops, min_macs=min_macs, lossless=lossless, source=str(source or ""), unwritable=unwritable)
        try:
            parts = (
                [split_up(found, listed, Path(split), fallback, source=source, read=noted_options(given.read), force=force)]
                if split
                else []
            )
            break
        except RegionsRefusedError as error:
            unwritable += error.refused
    files = []
    if place is not None and writer is not None:
        _write(found, place, writer, reader, source, given, force)
        files.append(str(place))
    return replace(found.partition, files=(*files, *map(str, parts)))


def _split_options(options: Mapping[str, Any], reader: Format | None, writer: Format | None) -> Given:
    """Split options into those of the reader and those of the writer.

    Raises:
        OptionError: neither takes one, or its value is wrong.
    """
    read, write = () if reader is None else reader.read_options, () if writer is None else writer.write_options
    given = check_options(options, (*read, *write), "nothing in this partition")
    return Given(pick_declared(given, read), {}, pick_declared(given, write))


def _write(found: Cut, place: Path, writer: Format, reader: Format | None, source: Path | None, given: Given, force: bool) -> None:
    """Write the partitioned graph with the changes that the format requires, by the format's own target."""
    if writer.write is None:
        raise OptionError(f"the format is {writer.name}, which cannot be written", file=str(place), rule="format-not-written")
    target = chosen_target(writer, writer.own_target)
    declared = Declared(found.partition.graph)
    graph, changes = normalize(found.partition.graph, target, observers=(declared,))
    refuse_losses(changes)
    refuse_violations(graph, target)
    others = reader.companions(source) if reader is not None and source is not None and reader.companions is not None else ()
    origin = provenance(source, others, target, changes) if source is not None else {}
    origin = drop_keys(origin, OPTIONS)  # a check would otherwise repeat the conversion
    read = noted_options(given.read)
    regions = {region.name: {"target": region.target, "operators": region.size} for region in found.partition.regions}
    origin |= {REGIONS: json.dumps(regions), **({READ: json.dumps(read, default=str)} if read else {}), **declared.provenance(graph)}
    options = {**(target.write_options if target is not None else {}), **given.write}
    write_file(graph, place, writer, force=force, provenance=origin, reads=() if source is None else (source, *others), **options)
