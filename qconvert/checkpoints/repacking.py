"""A checkpoint as a checkpoint of another tool: its layers are converted one after another in threads, so that only a few of them are in
memory.

Files of a result that are finished have a record next to them: what the configuration and the report say of its layers. The next run of the
same conversion takes them over where one was interrupted.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.activations import Activations
from qconvert.checkpoints.config import FILE_OF_MODELOPT, FILES_OF_CONFIG, KEYS_OF_CONFIG
from qconvert.checkpoints.container import Container, LayerKind, Needs, Written, is_embedding, is_head
from qconvert.checkpoints.fitting import Misfit, fit_weight
from qconvert.checkpoints.nearest import find_nearest_weight, signal_to_noise
from qconvert.checkpoints.safetensors import written_file
from qconvert.checkpoints.source import CheckpointSource
from qconvert.checkpoints.weight import BlockWeight
from qconvert.errors import UnsupportedError, format_count

#: A form: which weights it holds, and the tensors of one.
Form = tuple[Needs, Callable[[BlockWeight], Mapping[str, Array]]]

#: Threads that convert layers, and layers that wait to be written: numpy computes without Python's lock.
_THREADS, _WAITING = 2, 4


_SUFFIX = ".finished"


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What the configuration and the report say of a layer in blocks of the source.

    Attributes:
        name: of the layer.
        kind: how it is stored; None where it became floats.
        scales: their type.
        integers: how many it has.
        scale_count: how many scales it has.
        has_groups: whether its inputs are in another order than their blocks.
        is_new: whether it was quantized again.
        sqnr_db: of its new weights, in decibels; None where none changed.
        dropped: how data were rounded that stay float now.
    """

    name: str
    kind: LayerKind | None = None
    scales: str = ""
    integers: int = 0
    scale_count: int = 0
    has_groups: bool = False
    is_new: bool = False
    sqnr_db: float | None = None
    dropped: Activations | None = None


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """What a finished file holds.

    Attributes:
        tensors: their names.
        size: bytes of them.
        layers: those of the source that it holds.
    """

    tensors: Sequence[str]
    size: int
    layers: Sequence[LayerFacts]


def record_file(path: Path, found: FinishedFile) -> None:
    """Write down that a file is finished. A record that was interrupted is no JSON, and counts for nothing."""
    path.with_name(path.name + _SUFFIX).write_text(json.dumps({**asdict(found), "file": _describe(path)}), encoding="utf-8")


def take_finished_files(folder: Path) -> dict[str, FinishedFile]:
    """The finished files of a folder, by their names; all else in it is removed."""
    found: dict[str, FinishedFile] = {}
    for record in folder.glob(f"*{_SUFFIX}"):
        path = record.with_suffix("")
        with suppress(OSError, ValueError, KeyError, TypeError):
            stated = json.loads(record.read_text(encoding="utf-8"))
            if stated["file"] == _describe(path):
                found[path.name] = FinishedFile(stated["tensors"], stated["size"], [_read_facts(layer) for layer in stated["layers"]])
    for item in folder.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name.removesuffix(_SUFFIX) not in found:
            item.unlink()
    return found


def remove_records(folder: Path) -> None:
    """Remove all records of a folder."""
    for record in folder.glob(f"*{_SUFFIX}"):
        record.unlink()


def _describe(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _read_facts(stated: Mapping[str, Any]) -> LayerFacts:
    kind, dropped = stated["kind"], stated["dropped"]
    if kind is not None:
        kind = LayerKind(**{**kind, "activations": kind["activations"] and Activations(**kind["activations"])})
    return LayerFacts(**{**stated, "kind": kind, "dropped": dropped and Activations(**dropped)})


@dataclass(slots=True)
class Repacked:
    """What was done to a checkpoint.

    Attributes:
        counts: of what was kept.
        notes: what the user should know.
        costs: layer -> SQNR in decibels of its new weights; of those alone that were quantized again; None where none changed.
        dropped: layer -> how its data were rounded, which stay float now.
    """

    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    costs: dict[str, float | None] = field(default_factory=dict)
    dropped: dict[str, Activations] = field(default_factory=dict)

    def add(self, layer: LayerFacts) -> None:
        """Count a layer, and what it lost."""
        if layer.kind is not None:
            self.counts.update({"layers in blocks": 1, "integers in them": layer.integers, "scales": layer.scale_count})
        if layer.dropped is not None:
            self.dropped[layer.name] = layer.dropped
        if layer.is_new:
            self.costs[layer.name] = layer.sqnr_db


@dataclass(frozen=True, slots=True)
class ConvertedLayer:
    """What one layer, or tensor, became.

    Attributes:
        name: of the layer or tensor.
        tensors: what is written of it, by its name; empty where nothing is.
        weight: the weight in blocks that was written.
        misfit: why no form holds it.
        is_new: whether it was quantized again.
        sqnr_db: of its new weights, in decibels; None where none changed.
        dropped: how data were rounded that stay float now.
    """

    name: str
    tensors: Mapping[str, Array]
    weight: BlockWeight | None = None
    misfit: Misfit | None = None
    is_new: bool = False
    sqnr_db: float | None = None
    dropped: Activations | None = None

    @property
    def facts(self) -> LayerFacts:
        """What the configuration and the report say of it."""
        weight = self.weight
        if weight is None:
            return LayerFacts(self.name)
        scheme = weight.activations and replace(weight.activations, scale=None, zero=0)
        return LayerFacts(
            self.name,
            LayerKind(weight.bits, weight.block, weight.is_symmetric, weight.strategy, scheme),
            weight.scale.dtype.name,
            weight.outputs * weight.inputs,
            weight.scale.size,
            weight.groups is not None,
            self.is_new,
            self.sqnr_db,
            self.dropped,
        )


def convert_layer(name: str, weight: BlockWeight, forms: Sequence[Form], *, requantize: bool) -> ConvertedLayer:
    """A weight in the first form that holds it.

    Args:
        name: of the layer.
        weight: as it is read.
        forms: in the order of preference.
        requantize: whether the nearest weight of all forms is taken where none does.
    """
    misfit = None
    for needs, write in forms:
        found = fit_weight(weight, needs)
        if isinstance(found, BlockWeight):
            return ConvertedLayer(name, write(found), found)
        misfit = found if misfit is None or found.share < misfit.share else misfit
    made = []
    for needs, write in forms if requantize else ():
        found = find_nearest_weight(weight, needs)
        if isinstance(found, BlockWeight):
            made.append((found, write))
        else:
            misfit = found
    if not made:
        return ConvertedLayer(name, {}, misfit=misfit)
    losses = [signal_to_noise(weight, found) for found, _ in made]
    best = max(range(len(made)), key=lambda place: np.inf if (db := losses[place]) is None else db)
    found, write = made[best]
    dropped = weight.activations if found.activations is None else None
    is_new = dropped is None or losses[best] is not None
    return ConvertedLayer(name, write(found), found, is_new=is_new, sqnr_db=losses[best], dropped=dropped)


def map_in_order(work: Callable[[str], ConvertedLayer], items: Iterable[str]) -> Iterator[ConvertedLayer]:
    """The results of all items in their order, computed by threads a few of them ahead."""
    left = iter(items)
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: list[Future[ConvertedLayer]] = [pool.submit(work, item) for item in islice(left, _WAITING)]
        try:
            while waiting:
                yield waiting.pop(0).result()
                with suppress(StopIteration):
                    waiting.append(pool.submit(work, next(left)))
        finally:
            for future in waiting:
                future.cancel()


def refusal(misfits: Sequence[ConvertedLayer], title: str, count: int, *, requantize: bool = False) -> UnsupportedError:
    """The error of layers that no form holds, with all reasons and shares.

    Args:
        misfits: these layers.
        title: what the result is called.
        count: of all layers.
        requantize: whether the nearest weights have been tried.
    """
    reasons: dict[tuple[str, str], list[float]] = {}
    for layer in misfits:
        assert layer.misfit is not None
        reasons.setdefault((layer.misfit.reason, layer.misfit.shared), []).append(layer.misfit.share)
    said = []
    for (reason, shared), shares in reasons.items():
        share = f" ({min(shares):.1%} to {max(shares):.1%} of the {shared})" if min(shares) < 1 else ""
        said.append(f"{format_count(len(shares), 'layer')} of {count}: {reason}{share}")
    return UnsupportedError(
        f"{title} does not hold every value: {'; '.join(said)}",
        where=repr(misfits[0].name),
        remedy="" if requantize else "--requantize takes the nearest weights that fit, and reports their error.",
        rule="not-lossless",
    )


Progress = Callable[[str, int, int], None]

_INDEX = "model.safetensors.index.json"
#: Files of a checkpoint's folder that go along: tokenizers and configurations, not weights of other forms.
_CARRIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py", ".md")
_LARGEST_CARRIED = 200_000_000


def repack(
    source: CheckpointSource,
    folder: Path,
    container: Container,
    *,
    requantize: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Repacked:
    """Write a checkpoint with the layers of another as a container stores them; all else is carried over as it is.

    Args:
        source: the checkpoint.
        folder: an empty one, or one in which a run that was interrupted left files of the same conversion: those that are finished are
            taken over.
        container: which can be written.
        requantize: whether weights without room in it become the nearest ones that have; else they are an error.
        progress: is called with ("layers", done, total).

    Raises:
        UnsupportedError: it has no layers in blocks, or some have no room in the container: reasons and shares are in the error.
        QConvertError: the checkpoint cannot be read.
    """
    if not source.layers:
        raise UnsupportedError(
            "the checkpoint has no weights in blocks",
            remedy="Quantize it with a tool for that first, such as GPTQModel or llm-compressor.",
            rule="no-blocks",
        )
    return _Repacking(source, container, requantize, progress).run(folder)


class _Repacking:
    def __init__(self, source: CheckpointSource, container: Container, requantize: bool, progress: Progress) -> None:
        assert container.needs is not None and container.write is not None
        self._source, self._container, self._requantize, self._progress = source, container, requantize, progress
        self._needs: Needs = container.needs
        self._form = container.needs, container.write
        self._layers: list[LayerFacts] = []
        self._misfits: list[ConvertedLayer] = []
        self._places: dict[str, str] = {}
        self._size = 0
        self._result = Repacked()

    def run(self, folder: Path) -> Repacked:
        files, left = self._source.files(), take_finished_files(folder)
        for name, items in files.items():
            finished = left.get(name)
            if finished is None:
                finished = self._write(folder / name, items)
            else:
                for facts in finished.layers:
                    self._count(facts)
                self._tell_progress()
            if carried := sum(item not in self._source.layers for item in items):
                self._result.counts["tensors carried over"] += carried
            self._places.update(dict.fromkeys(finished.tensors, name))
            self._size += finished.size
        if self._misfits:
            raise refusal(self._misfits, self._container.title, len(self._source.layers), requantize=self._requantize)
        if self._source.checkpoint.is_sharded:
            index = {"metadata": {"total_size": self._size}, "weight_map": self._places}
            (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        self._write_config(folder)
        if self._source.folder is not None:
            _carry_files(self._source.folder, folder)
        remove_records(folder)
        self._result.notes = list(self._notes())
        if left:
            self._result.notes.append(f"note: {len(left)} of {format_count(len(files), 'file')} were there from an interrupted run")
        return self._result

    def _write(self, path: Path, items: list[str]) -> FinishedFile:
        """Write one file: the tensors of layers, and those that are carried over. It gets its name once it is finished."""
        parts = (*self._container.parts, "weight")
        possible = [name for item in items for name in ([f"{item}.{part}" for part in parts] if item in self._source.layers else [item])]
        metadata = {"format": "mlx" if self._container.name.startswith("mlx") else "pt"}
        sizes: dict[str, int] = {}
        layers = []
        unfinished = path.with_name(f"{path.name}.part")
        try:
            with written_file(unfinished, possible, metadata) as writer:
                for layer in map_in_order(self._convert_item, items):
                    if layer.misfit is not None:
                        self._misfits.append(layer)
                    elif layer.name in self._source.layers:
                        layers.append(layer.facts)
                        self._count(layers[-1])
                    if layer.name in self._source.layers:
                        self._tell_progress()
                    self._source.release(layer.name)
                    for name, tensor in layer.tensors.items() if not self._misfits else ():
                        writer.add(name, tensor)
                        sizes[name] = tensor.nbytes
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        finished = FinishedFile(list(sizes), sum(sizes.values()), layers)
        if not self._misfits:
            record_file(path, finished)
        return finished

    def _convert_item(self, item: str) -> ConvertedLayer:
        """A layer, or a tensor that is carried over; called in threads, so that it changes nothing."""
        if item not in self._source.layers:
            return ConvertedLayer(item, {item: self._source.plain[item]})
        weight = self._source.weight(item, in_columns=self._container.in_columns)
        as_floats = (is_embedding(item) and not self._container.has_embeddings) or (is_head(item) and not self._container.has_head)
        if as_floats and weight.factors is None:
            real = weight.floats(np.dtype(np.float32))
            narrow = real.astype((weight.scale if weight.offset is None else weight.offset).dtype)
            is_exact = narrow.dtype.itemsize > 1 and np.array_equal(narrow.astype(np.float32), real)
            return ConvertedLayer(item, {f"{item}.weight": narrow if is_exact else real})
        needs, write = self._form

        def name_parts(made: BlockWeight) -> dict[str, Array]:
            return {f"{item}.{part}": tensor for part, tensor in write(made).items()}

        return convert_layer(item, weight, [(needs, name_parts)], requantize=self._requantize)

    def _count(self, layer: LayerFacts) -> None:
        self._layers.append(layer)
        self._result.add(layer)

    def _tell_progress(self) -> None:
        self._progress("layers", len(self._layers) + len(self._misfits), len(self._source.layers))

    def _write_config(self, folder: Path) -> None:
        """config.json with the new quantization."""
        real = [
            name.removesuffix(".weight")
            for name, tensor in self._source.plain.items()
            if name.endswith(".weight") and tensor.ndim == 2 and not is_embedding(name.removesuffix(".weight"))
        ]
        layers = {layer.name: layer.kind for layer in self._layers if layer.kind is not None}
        if not self._needs.blocks and all(kind.strategy in ("tensor", "channel") for kind in layers.values()):
            layers = {name: replace(kind, block=-1) for name, kind in layers.items()}
        written = Written(layers, real, any(layer.has_groups for layer in self._layers))
        if self._needs.one_block and written.unusual():
            bits, block = written.usual
            name, (other_bits, other) = next(iter(written.unusual().items()))
            raise UnsupportedError(
                f"{self._container.title} has one size of blocks for all layers: {other_bits} bits in blocks of {other} here, {bits} bits "
                f"in blocks of {block} in most",
                where=repr(name),
                rule="blocks-differ",
            )
        documents = dict(self._container.documents(written)) if layers else {}
        kept = {key: _without_quantization(value) for key, value in self._source.config.model.items() if key not in KEYS_OF_CONFIG}
        documents[FILES_OF_CONFIG[0]] = {**kept, **documents.get(FILES_OF_CONFIG[0], {})}
        for name, document in documents.items():
            (folder / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def _notes(self) -> list[str]:
        notes = [f"note: {note}" for note in self._source.notes]
        if made_real := [layer.name for layer in self._layers if layer.kind is None]:
            named, count = ", ".join(made_real[:2]), format_count(len(made_real), "layer")
            notes.append(f"note: {count} ({named}) became floats, which {self._container.title} has for embeddings and the last layer")
        if self._source.config.dtype == "bfloat16" and any(layer.scales == "float16" for layer in self._layers):
            notes.append(
                "warning: config.json says bfloat16, and scales are float16: load the model with dtype=float16, since a program that takes "
                "them to bfloat16 changes them"
            )
        return notes


def _without_quantization(value: Any) -> Any:
    """An entry of config.json, of a part of the model without the quantization that it states."""
    return {key: item for key, item in value.items() if key not in KEYS_OF_CONFIG} if isinstance(value, dict) else value


def _carry_files(source: Path, folder: Path) -> None:
    """The other files of a checkpoint's folder: its tokenizer and what else belongs to the model."""
    for file in sorted(source.iterdir()):
        is_own = file.name in (*FILES_OF_CONFIG, FILE_OF_MODELOPT) or file.name.endswith(".index.json")
        if file.is_file() and file.suffix in _CARRIED and not is_own and file.stat().st_size <= _LARGEST_CARRIED:
            shutil.copyfile(file, folder / file.name)
