"""A partitioned network as parts that run one after the other, its regions, and the rest in as few parts as there are stages between; and
these parts as files of their own, written to a folder with the manifest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qconvert.conversion import load
from qconvert.conversion.judging import Declared, refuse_losses
from qconvert.conversion.normalizing import normalize
from qconvert.conversion.saving import write_file
from qconvert.errors import FileAccessError, InternalError, MissingPackageError, OptionError, QConvertError, RuntimeRefusedError
from qconvert.files import file_digest, whole_folder
from qconvert.graph import Graph, Op, Tensor
from qconvert.graph.metadata import TARGET
from qconvert.operators import kind_of
from qconvert.operators.shapes_and_functions import in_function, named_states, with_used_functions
from qconvert.operators.sizes import is_compatible
from qconvert.partitioning.driver import Cut, Unwritable, macs
from qconvert.partitioning.manifest import NAME, CrossingState, FileOf, Manifest, PartFile, hash_file, manifest_json, read_manifest
from qconvert.partitioning.parts import kept_metadata
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


def require_folder(folder: Path, *, force: bool) -> None:
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a network.

    Attributes:
        name: the region's, or "rest_0" ….
        target: of the region; "" of the rest.
        graph: the part as a graph of its own.
    """

    name: str
    target: str
    graph: Graph


@dataclass(frozen=True, slots=True)
class Staged:
    """A network as parts in the order in which they run.

    Attributes:
        parts: the parts. Their inputs are inputs of the network, states, or outputs of parts before them.
        states: those that no part holds.
    """

    parts: tuple[Stretch, ...]
    states: tuple[CrossingState, ...]


def stage_graph(graph: Graph) -> Staged:
    """Return the parts of a partitioned graph."""
    main, states = _without_states(graph)
    levels = _levels(main)
    last = max(levels, default=0)
    listed: list[tuple[str, list[Op]]] = []
    for level in range(last + 1):
        here = [op for op, one in zip(main.ops, levels, strict=True) if one == level]
        rest = [op for op in here if not _target(op)]
        listed += [("", rest)] if rest else []
        listed += [(_target(op), [op]) for op in here if _target(op)]
    kept = main.public.union(state.written for state in states)
    return Staged(_stretches(main, _with_dequantizes(main, listed, kept), kept), states)


def _target(op: Op) -> str:
    """Return the target of a region; "" for other operators."""
    return str(op.attributes.get("target", ""))


def _without_states(graph: Graph) -> tuple[Graph, tuple[CrossingState, ...]]:
    """Return the graph without reads and writes of states outside of regions; the values that they read become inputs of parts."""
    ops: list[Op] = []
    reads: dict[str, list[str]] = {}
    written: dict[str, str] = {}
    for op in graph.ops:
        kind = kind_of(op)
        if kind.reads_state:
            name = str(op["state"])
            reads.setdefault(name, [])
            if name in written:
                ops.append(op.derive("Identity", (written[name],), op.outputs))
            else:
                reads[name].append(op.name)
        elif kind.has_effect:
            written[str(op["state"])] = op.inputs[0]
        else:
            ops.append(op)
    names = dict.fromkeys((*reads, *written))
    return replace(graph, ops=tuple(ops)), tuple(CrossingState(n, tuple(reads.get(n, ())), written.get(n, "")) for n in names)


def _levels(graph: Graph) -> list[int]:
    """Return the stage of each operator: one more for an operator of the rest after a region; regions in sequence share a stage.

    An operator of the rest that only later stages read is in the first of these, so that there are few.
    """
    following: dict[str, tuple[int, bool]] = {}  # tensor -> the level of what computes it, and whether that is a region
    found = []
    for op in graph.ops:
        own = bool(_target(op))
        level = 0
        for name in filter(None, op.inputs):
            before, is_region = following.get(name, (0, False))
            level = max(level, before + (is_region and not own))
        found.append(level)
        following.update((name, (level, own)) for name in op.outputs if name)
    wanted: dict[str, int] = dict.fromkeys(graph.public, 0)
    for place in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[place]
        readers = [wanted[name] for name in op.outputs if name in wanted]
        if not _target(op) and readers:
            found[place] = max(found[place], min(readers))
        for name in filter(None, op.inputs):
            wanted[name] = min(wanted.get(name, found[place]), found[place])
    return found


def _with_dequantizes(graph: Graph, listed: Sequence[tuple[str, list[Op]]], kept: frozenset[str]) -> list[tuple[str, list[Op]]]:
    """Add to each part of the rest the Dequantize operators that it reads, so that integers go between parts; drop unread ones."""
    dequantizes = {op.name: op for op in graph.of_kind("Dequantize")}
    found = []
    for target, ops in listed:
        if not target:
            given = dict.fromkeys(name for op in ops for name in op.inputs if name)
            own = {name for op in ops for name in op.outputs}
            ops = [*(dequantizes[name] for name in given if name in dequantizes and name not in own), *ops]
            read = kept.union(*(op.inputs for op in ops))
            ops = [op for op in ops if op.name not in dequantizes or op.name in read]
        if ops:
            found.append((target, ops))
    return found


def _stretches(graph: Graph, listed: Sequence[tuple[str, list[Op]]], kept: frozenset[str]) -> tuple[Stretch, ...]:
    """Return the parts. `kept`: tensors that are outputs even without a reader."""
    reads = [{name for op in ops for name in op.inputs if name} for _, ops in listed]
    given: set[str] = set()
    parts: list[Stretch] = []
    for place, (target, ops) in enumerate(listed):
        if target:
            name = str(ops[0]["function"])
            parts.append(Stretch(name, target, _region(graph, name)))
            continue
        made = dict.fromkeys(name for op in ops for name in op.outputs if name and name not in given)
        wanted = kept.union(*(read for other, read in enumerate(reads) if other != place))
        outputs = tuple(name for name in made if name in kept or (name in wanted and not _is_duplicated(name, ops, listed, place)))
        inside = {name for op in ops for name in op.outputs}
        inputs = tuple(dict.fromkeys(x for op in ops for x in op.inputs if x and x not in inside and not graph[x].is_constant))
        number = sum(not part.target for part in parts)
        part = graph.evolve(
            ops=ops, name=f"rest_{number}", inputs=inputs, outputs=outputs, signatures=(), states={}, metadata=kept_metadata(graph)
        )
        given.update(outputs)
        parts.append(Stretch(part.name, "", with_used_functions(part)))
    return tuple(parts)


def _is_duplicated(name: str, ops: Sequence[Op], listed: Sequence[tuple[str, list[Op]]], place: int) -> bool:
    """Whether a tensor is the result of a Dequantize that each of its readers' parts has too."""
    maker = next(op for op in ops if name in op.outputs)
    if not kind_of(maker).dequantizes:
        return False
    readers = [other for other, (_, others) in enumerate(listed) if other != place and any(name in op.inputs for op in others)]
    return all(any(name in op.outputs for op in listed[other][1]) for other in readers)


def _region(graph: Graph, name: str) -> Graph:
    whole = in_function(graph, name)
    states = {state: graph.states[state] for state in named_states(whole, whole.ops)}
    return with_used_functions(replace(whole, name=name, states=states))
