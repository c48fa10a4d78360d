"""A checkpoint that is read: its layers in blocks, each made when it is asked for, and its other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qconvert.arithmetic.dtypes import Array
from qconvert.checkpoints import describe_layers, layers_in_blocks
from qconvert.checkpoints.config import Config, read_config
from qconvert.checkpoints.container import Container
from qconvert.checkpoints.parts import Parts
from qconvert.checkpoints.safetensors import Checkpoint, read_checkpoint
from qconvert.checkpoints.weight import BlockWeight
from qconvert.files.mapped import release_pages

__all__ = ["CheckpointSource"]


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """The tensors of a checkpoint, as views on its files.

    Attributes:
        checkpoint: the files.
        config: what config.json says.
        layers: those in blocks, by their paths.
        plain: the other tensors, by their names.
    """

    checkpoint: Checkpoint
    config: Config
    layers: Mapping[str, tuple[Container, Parts]]
    plain: Mapping[str, Array]

    @classmethod
    def of(cls, path: Path) -> CheckpointSource:
        """The checkpoint that a .safetensors file belongs to.

        Raises:
            QConvertError: it cannot be read, is damaged, or has layers in a form that is not covered.
        """
        checkpoint = read_checkpoint(path)
        layers = layers_in_blocks(checkpoint.tensors)
        config = read_config(path)
        config.require_known()
        owners = _owners(layers)
        return cls(checkpoint, config, layers, {name: item for name, item in checkpoint.tensors.items() if name not in owners})

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of it."""
        return describe_layers(self.layers, self.config)

    def files(self) -> dict[str, list[str]]:
        """Each file's name with the layers and other tensors that it holds; a layer in several files is of the first."""
        owners = _owners(self.layers)
        found: dict[str, list[str]] = {}
        seen: set[str] = set()
        for name, place in self.checkpoint.places.items():
            item = owners.get(name, name)
            if item not in seen:
                seen.add(item)
                found.setdefault(place, []).append(item)
        return found

    def weight(self, layer: str) -> BlockWeight:
        """The weight of a layer in blocks. Raises QConvertError where its tensors do not fit each other."""
        container, parts = self.layers[layer]
        return container.read(parts, self.config)

    def release(self, item: str) -> None:
        """Give back the memory of a layer or tensor that is not needed again soon."""
        for tensor in self.layers[item][1].tensors.values() if item in self.layers else (self.plain[item],):
            release_pages(tensor)


def _owners(layers: Mapping[str, tuple[Container, Parts]]) -> dict[str, str]:
    """Tensor -> the layer in blocks that it is a part of."""
    return {f"{layer}.{part}": layer for layer, (_, parts) in layers.items() for part in parts.tensors}
