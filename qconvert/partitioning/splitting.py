"""A partitioned network as files of its own: its parts (stages.py), written to a folder with the manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qconvert.conversion import load
from qconvert.conversion.judging import Declared, refuse_losses
from qconvert.conversion.normalizing import normalize
from qconvert.conversion.saving import write_file
from qconvert.errors import FileAccessError, InternalError, MissingPackageError, OptionError, QConvertError, RuntimeRefusedError
from qconvert.files import file_digest, whole_folder
from qconvert.graph import Graph, Tensor
from qconvert.graph.metadata import TARGET
from qconvert.operators.sizes import is_compatible
from qconvert.partitioning.driver import Cut, Unwritable, macs
from qconvert.partitioning.manifest import NAME, FileOf, Manifest, PartFile, hash_file, manifest_json, read_manifest
from qconvert.partitioning.stages import Staged, Stretch, stage_graph
from qconvert.plugins import Codegen, Target, codegen_of, format_named, kernels_named, name_changes, runtime_of, target_named
from qconvert.targets.audit import refuse_violations
from qconvert.version import __version__

#: The file of the tensors that go from part to part.
_VALUES = "values.qgraph"


class RegionsRefusedError(Exception):
    """Regions that cannot be files of their targets' formats, unless the refused operators are left out.

    Args:
        refused: the operators of each region that its writer names, and why.
    """

    def __init__(self, refused: Sequence[Unwritable]) -> None:
        super().__init__(refused)
        self.refused = refused


def split_up(
    found: Cut, targets: Sequence[Target], folder: Path, rest: str, *, source: Path | None, read: Mapping[str, Any], force: bool
) -> Path:
    """Writes each region and each part of the rest as a file of its own, and the manifest, whose path is returned.

    A region is fitted by its target's passes; it becomes a file of the target's format, or an artefact of its code generator.

    Args:
        found: the partition.
        targets: of the regions.
        folder: where the files go, all or none.
        rest: the name of the target that the rest is for.
        source: the model's file.
        read: the options that it was read with.
        force: whether a split that is there may be replaced.

    Raises:
        RegionsRefusedError: the writers of their targets' formats refuse regions, or parts of them.
        QConvertError: an artefact cannot be made, or the rest's target does not take the rest.
    """
    known = {target.name: target for target in targets}
    other = target_named(rest)
    parts = stage_graph(found.partition.graph)
    old = _old_files(folder) if force else ()
    reads = () if source is None else (source,)
    with whole_folder(folder, (*old, NAME), force=force, reads=reads) as place:
        written, refused = [], []
        for number, part in enumerate(parts.parts):
            try:
                written.append(_write_part(part, known.get(part.target, other), place, number))
            except (InternalError, FileAccessError, MissingPackageError):
                raise
            except QConvertError as error:
                if not part.target or codegen_of(part.target) is not None:
                    raise
                refused.append(Unwritable.of(part.graph, part.target, error))
        if refused:
            raise RegionsRefusedError(refused)
        values = _values(found.partition.graph, parts)
        write_file(values, place / _VALUES, format_named("qgraph"))
        manifest = Manifest(
            source=FileOf("", "") if source is None else FileOf(source.name, file_digest(source)),
            targets=found.partition.targets,
            inputs=found.partition.graph.inputs,
            outputs=found.partition.graph.outputs,
            values=hash_file(place, _VALUES),
            states=parts.states,
            parts=tuple(written),
            read=read,
        )
        (place / NAME).write_text(manifest_json(manifest, __version__))
        read_manifest(place / NAME)
    return folder / NAME


def require_parts(targets: Iterable[Target]) -> None:
    """Raise OptionError for a target whose regions cannot be files: its format is not read and written, or is a folder of files."""
    for target in targets:
        writer = format_named(target.format)
        if codegen_of(target.name) is None and (writer.read is None or writer.write is None or not writer.suffixes or writer.folder):
            remedy = "Leave --split out, or use another target, or one with a code generator."
            raise OptionError(
                f"parts for {target.name} cannot be files of the format {writer.name}", remedy=remedy, rule="target-of-other-format"
            )


def require_folder(folder: Path, *, force: bool = False) -> None:
    """Raise FileAccessError, before anything is written, if a split cannot go there: a file, or a folder with other files."""
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise FileAccessError(
            "is a file; the result requires a folder", file=str(folder), remedy="Name another folder.", rule="not-a-folder"
        )
    if not any(folder.iterdir()):
        return
    if not (folder / NAME).is_file():
        raise FileAccessError("holds other files", file=str(folder), remedy="Name a new folder.", rule="folder-not-empty")
    if not force:
        raise FileAccessError(
            "already exists", file=str(folder), remedy="Use --force to replace the split that is in it.", rule="file-exists"
        )
    _old_files(folder)


def _old_files(folder: Path) -> tuple[str, ...]:
    """Return the files of a split in a folder; none if the folder is new."""
    if not os.path.isfile(folder / NAME):
        return ()
    try:
        return tuple(item.file for item in read_manifest(folder / NAME, verify=False).files())
    except QConvertError as error:
        raise FileAccessError(f"holds a {NAME} that is not of a split: {error.reason}", file=str(folder), rule="not-a-split") from error


def _write_part(part: Stretch, target: Target, folder: Path, number: int) -> PartFile:
    """Write one part, and return its entry in the manifest."""
    stem = f"{number:02}_{re.sub(r'[^A-Za-z0-9_-]+', '_', part.name)[:80]}"
    declared = Declared(part.graph)
    fitted, changes = normalize(part.graph, target, observers=(declared,))
    refuse_losses(changes)
    refuse_violations(fitted, target)
    generator = codegen_of(part.target) if part.target else None
    before = {item.name for item in folder.iterdir()}
    if generator is not None:
        name, form, runtime, graph = _generate_artefact(fitted, generator, folder, stem)
    else:
        form, graph = target.format, None
        writer = format_named(form)
        name = stem + writer.suffix_for(target.write_options)
        write_file(fitted, folder / name, writer, provenance={TARGET: target.name, **declared.provenance(fitted)}, **target.write_options)
        _require_border(load(folder / name, form), part.graph, part.name)
        runtime = _runtime(form, target)
    beside = sorted({item.name for item in folder.iterdir()} - before - {name, *([graph] if graph else ())})
    return PartFile(
        name=part.name,
        target=target.name,
        region=bool(part.target),
        model=hash_file(folder, name),
        format=form,
        runtime=runtime,
        graph=None if graph is None else hash_file(folder, graph),
        beside=tuple(hash_file(folder, item) for item in beside),
        inputs=part.graph.inputs,
        outputs=part.graph.outputs,
        operators=len(part.graph.ops),
        macs=sum(macs(part.graph, op) for op in part.graph.ops),
    )


def _runtime(form: str, target: Target) -> str:
    """Return runtime and kernels for files of a target; "" if none here runs them."""
    try:
        loader, kernels = runtime_of(form, target.checked_by)
    except RuntimeRefusedError:
        return ""
    return f"{loader.name}:{kernels}"


def _generate_artefact(graph: Graph, generator: Codegen, folder: Path, stem: str) -> tuple[str, str, str, str]:
    """Write the artefact of a region and its graph; return file, format, runtime and the graph's file."""
    name, beside = stem + generator.suffix, f"{stem}.qgraph"
    loader, kernels = kernels_named(generator.runtime)
    name_changes(generator.compile(graph, folder / name), by=generator.name)
    if not (folder / name).is_file():
        raise OptionError(
            f"the code generator for {generator.name} wrote no file for {graph.name!r}",
            remedy="Write the file whose name it is given.",
            rule="generator-without-file",
        )
    if name != beside:
        write_file(graph, folder / beside, format_named("qgraph"))
    return name, "", f"{loader.name}:{kernels}", beside


def _require_border(file: Graph, part: Graph, name: str) -> None:
    """Raise InternalError unless inputs and outputs of a file are those of its part."""
    for word, own, others in (("takes", part.inputs, file.inputs), ("gives", part.outputs, file.outputs)):
        pairs = list(zip(own, others, strict=False))
        same = len(own) == len(others) and all(_is_alike(part[a], file[b]) for a, b in pairs)
        if not same:
            raise InternalError(
                f"the file {word} {', '.join(map(repr, others))}, not what its part {word}", where=name, rule="part-differs"
            )


def _is_alike(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and is_compatible(a.shape, b.shape)


def _values(graph: Graph, parts: Staged) -> Graph:
    """Return a graph without operators: the tensors that go from part to part, constant outputs, and initial values of states."""
    crossing = dict.fromkeys((*graph.inputs, *graph.outputs))
    for part in parts.parts:
        crossing |= dict.fromkeys((*part.graph.inputs, *part.graph.outputs))
    for state in parts.states:
        crossing |= dict.fromkeys(filter(None, (*state.reads, state.written)))
    states = {state.name: graph.states[state.name] for state in parts.states}
    given = tuple(name for name in crossing if not graph[name].is_constant)
    return replace(graph, name="values", tensors={name: graph[name] for name in crossing}, ops=(), inputs=given, outputs=tuple(crossing),
                   signatures=(), functions={}, states=states, metadata={})  # fmt: skip
