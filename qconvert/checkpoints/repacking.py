"""A checkpoint as a checkpoint of another tool: layer by layer, so that no more than a few of them are in memory."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.checkpoints import described, layers_in_blocks
from qconvert.checkpoints.config import FILES_OF_CONFIG, KEYS_OF_CONFIG, Config, read_config
from qconvert.checkpoints.container import Container, Written
from qconvert.checkpoints.fitting import Misfit, fitted
from qconvert.checkpoints.nearest import nearest, signal_to_noise
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.safetensors import Checkpoint, read_checkpoint, written_file
from qconvert.checkpoints.weight import BlockWeight
from qconvert.errors import UnsupportedError, counted
from qconvert.files.mapped import release_pages

__all__ = ["Repacked", "repack"]

Array = np.ndarray[Any, np.dtype[Any]]
Progress = Callable[[str, int, int], None]

_INDEX = "model.safetensors.index.json"
#: Threads that convert layers, and layers that wait to be written: numpy computes without Python's lock.
_THREADS, _WAITING = 2, 4
#: Files of a checkpoint's folder that go along: tokenizers and configurations, not weights of other forms.
_CARRIED = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py", ".md")
_LARGEST_CARRIED = 200_000_000


@dataclass(slots=True)
class Repacked:
    """What was done.

    Attributes:
        counts: of what was kept.
        notes: what the user should know.
        costs: layer -> SQNR in decibels of its new weights; of those alone that were quantized again.
    """

    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    costs: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one layer became: its tensors, or why it has no room."""

    name: str
    tensors: Mapping[str, Array]
    weight: BlockWeight | None = None
    misfit: Misfit | None = None
    cost: tuple[float | None] | None = None


def repack(
    source: Path, folder: Path, container: Container, *, requantize: bool = False, progress: Progress = lambda what, done, total: None
) -> Repacked:
    """Write a checkpoint with the layers of another as a container stores them; all else is carried over as it is.

    Args:
        source: a .safetensors file of the checkpoint.
        folder: an empty one.
        container: which can be written.
        requantize: whether weights without room in it become the nearest ones that have; else they are an error.
        progress: is called with ("layers", done, total).

    Raises:
        UnsupportedError: it has no layers in blocks, or some have no room in the container: reasons and shares are in the error.
        QConvertError: the checkpoint cannot be read.
    """
    checkpoint, config = read_checkpoint(source), read_config(source)
    layers = layers_in_blocks(checkpoint.tensors)
    if not layers:
        raise UnsupportedError(
            "the checkpoint has no weights in blocks",
            remedy="Quantize it with a tool for that first, such as GPTQModel or llm-compressor.",
            rule="no-blocks",
        )
    return _Repacking(checkpoint, config, layers, container, requantize, progress).run(source, folder)


class _Repacking:
    def __init__(
        self,
        checkpoint: Checkpoint,
        config: Config,
        layers: Mapping[str, tuple[Container, Parts]],
        container: Container,
        requantize: bool,
        progress: Progress,
    ) -> None:
        self._checkpoint, self._config, self._layers, self._container = checkpoint, config, layers, container
        self._requantize, self._progress = requantize, progress
        self._owner = {f"{layer}.{part}": layer for layer, (_, parts) in layers.items() for part in parts.tensors}
        self._done: dict[str, tuple[int, int, bool]] = {}
        self._misfits: list[_Layer] = []
        self._made_real: list[str] = []
        self._places: dict[str, str] = {}
        self._has_groups = False
        self._size = 0
        self._totals: Counter[str] = Counter()
        self._result = Repacked()

    def run(self, source: Path, folder: Path) -> Repacked:
        names: dict[str, dict[str, None]] = {}
        for name, place in self._checkpoint.places.items():
            names.setdefault(place, {})[self._owner.get(name, name)] = None
        written: set[str] = set()
        for place, items in names.items():
            here = [item for item in items if item not in written]
            written.update(here)
            self._write(folder / place, here)
        if self._misfits:
            raise self._refusal()
        self._write_index(folder)
        self._write_config(source, folder)
        self._say()
        return self._result

    def _write(self, path: Path, items: list[str]) -> None:
        """Write one file: the tensors of layers, and those that are carried over."""
        possible = [name for item in items for name in self._possible_names(item)]
        metadata = {"format": "mlx" if self._container.name.startswith("mlx") else "pt"}
        with written_file(path, possible, metadata) as writer, ThreadPoolExecutor(_THREADS) as pool:
            for layer in _in_order(pool, self._converted, items):
                self._note(layer)
                if not self._misfits:
                    for name, tensor in layer.tensors.items():
                        writer.add(name, tensor)
                        self._places[name] = path.name
                        self._size += tensor.nbytes
                for tensor in self._stored(layer.name):
                    release_pages(tensor)

    def _possible_names(self, item: str) -> list[str]:
        return [f"{item}.{part}" for part in (*self._container.parts, "weight")] if item in self._layers else [item]

    def _stored(self, item: str) -> list[Array]:
        return list(self._layers[item][1].tensors.values()) if item in self._layers else [self._checkpoint.tensors[item]]

    def _converted(self, item: str) -> _Layer:
        """A layer, or a tensor that is carried over; called in threads, so that it changes nothing."""
        if item not in self._layers:
            return _Layer(item, {item: self._checkpoint.tensors[item]})
        container, parts = self._layers[item]
        weight = container.read(parts, self._config)
        needs, write = self._container.needs, self._container.write
        assert needs is not None and write is not None
        if _is_embedding(item) and not self._container.has_embeddings:
            return _Layer(
                item, {f"{item}.weight": weight.values().astype((weight.scale if weight.offset is None else weight.offset).dtype)}
            )
        made, cost = fitted(weight, needs), None
        if isinstance(made, Misfit) and self._requantize:
            made = nearest(weight, needs)
            cost = None if isinstance(made, Misfit) else (signal_to_noise(weight, made),)
        if isinstance(made, Misfit):
            return _Layer(item, {}, misfit=made)
        return _Layer(item, {f"{item}.{part}": tensor for part, tensor in write(made).items()}, made, cost=cost)

    def _note(self, layer: _Layer) -> None:
        if layer.name not in self._layers:
            self._totals["tensors carried over"] += 1
            return
        if layer.misfit is not None:
            self._misfits.append(layer)
        elif layer.weight is None:
            self._made_real.append(layer.name)
        else:
            weight = layer.weight
            self._done[layer.name] = weight.bits, weight.block, weight.is_symmetric
            self._has_groups |= weight.groups is not None
            self._totals["layers in blocks"] += 1
            self._totals["integers in them"] += weight.outputs * weight.inputs
            self._totals["scales"] += weight.scale.size
        if layer.cost is not None:
            self._result.costs[layer.name] = layer.cost[0]
        self._progress("layers", len(self._done) + len(self._made_real) + len(self._misfits), len(self._layers))

    def _refusal(self) -> UnsupportedError:
        reasons: dict[str, list[_Layer]] = {}
        for layer in self._misfits:
            assert layer.misfit is not None
            reasons.setdefault(layer.misfit.reason, []).append(layer)
        said = []
        for reason, layers in reasons.items():
            shares = [layer.misfit.share for layer in layers if layer.misfit is not None]
            share = f" ({min(shares):.1%} to {max(shares):.1%} of the blocks)" if min(shares) < 1 else ""
            said.append(f"{counted(len(layers), 'layer')} of {len(self._layers)}: {reason}{share}")
        return UnsupportedError(
            f"{self._container.title} does not hold every value: {'; '.join(said)}",
            where=repr(self._misfits[0].name),
            remedy="--requantize takes the nearest weights that have room, and says what that costs.",
            rule="not-lossless",
        )

    def _write_index(self, folder: Path) -> None:
        if self._checkpoint.is_sharded:
            index = {"metadata": {"total_size": self._size}, "weight_map": self._places}
            (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _write_config(self, source: Path, folder: Path) -> None:
        """config.json with the new quantization, and the other files of the folder."""
        real = [
            name.removesuffix(".weight")
            for name, tensor in self._checkpoint.tensors.items()
            if name.endswith(".weight") and tensor.ndim == 2 and name not in self._owner and not _is_embedding(name.removesuffix(".weight"))
        ]
        written = Written(self._done, real, self._has_groups)
        needs = self._container.needs
        assert needs is not None
        if needs.one_block and len({(bits, block) for bits, block, _ in self._done.values()}) > 1:
            bits, block = written.usual
            name, other = next(iter(written.unusual().items()))
            raise UnsupportedError(
                f"{self._container.title} has one size of blocks for all layers: {other[0]} bits in blocks of {other[1]} here, {bits} bits "
                f"in blocks of {block} in most",
                where=repr(name),
                rule="blocks-differ",
            )
        entries = self._container.config(written) if self._done else {}
        kept = {key: value for key, value in self._config.model.items() if key not in KEYS_OF_CONFIG}
        (folder / FILES_OF_CONFIG[0]).write_text(json.dumps({**kept, **entries}, indent=2) + "\n", encoding="utf-8")
        if not self._config.model:
            return
        for file in sorted(source.parent.iterdir()):
            is_own = file.name in FILES_OF_CONFIG or file.name.endswith(".index.json") or file.name == "hf_quant_config.json"
            if file.is_file() and file.suffix in _CARRIED and not is_own and file.stat().st_size <= _LARGEST_CARRIED:
                shutil.copyfile(file, folder / file.name)

    def _say(self) -> None:
        self._result.counts = dict(self._totals)
        notes = [f"note: {note}" for note in described(self._layers, self._config)]
        if self._made_real:
            named = ", ".join(self._made_real[:2])
            count = counted(len(self._made_real), "table")
            notes.append(f"note: {count} of embeddings ({named}) became floats of the same values, which {self._container.title} has alone")
        model = str(self._config.model.get("dtype") or self._config.model.get("torch_dtype") or "")
        if model == "bfloat16" and self._container.needs is not None and self._container.needs.scales == ("float16",):
            notes.append(
                "warning: config.json says bfloat16, and scales are float16: load the model with dtype=float16, since a program that takes "
                "them to bfloat16 changes them"
            )
        self._result.notes = notes


def _in_order(pool: ThreadPoolExecutor, work: Callable[[str], _Layer], items: list[str]) -> Iterator[_Layer]:
    """The results of all items in their order, a few of them ahead."""
    waiting: list[Future[_Layer]] = []
    left = iter(items)
    try:
        waiting += [pool.submit(work, item) for item in islice(left, _WAITING)]
        while waiting:
            yield waiting.pop(0).result()
            with suppress(StopIteration):
                waiting.append(pool.submit(work, next(left)))
    finally:
        for future in waiting:
            future.cancel()


def _is_embedding(layer: str) -> bool:
    """Whether a layer is a table of embeddings, by its name: MLX has them in blocks too."""
    own = layer.rpartition(".")[2]
    return "embed" in own or own in ("wte", "wpe")
