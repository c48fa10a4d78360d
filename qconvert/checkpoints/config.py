"""The quantization stated by config.json next to a checkpoint (`quantization_config`), and the defaults for entries it lacks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files.documents import json_next_to

if TYPE_CHECKING:
    from qconvert.checkpoints.container import Container, Parts

_LARGEST = 16_000_000
#: Files that hold it, the first one under one of the keys.
FILES_OF_CONFIG = ("config.json", "quantize_config.json", "quantization_config.json")
#: ModelOpt's own file, which is not read.
FILE_OF_MODELOPT = "hf_quant_config.json"
#: Tensors of attention layers, which no weight depends on.
SCALES_OF_CACHE = ("k_scale", "v_scale")
KEYS_OF_CONFIG = ("quantization_config", "quantization", "compression_config")
#: What config.json calls the tools whose layers are read; MLX does not say it.
_METHODS = (
    *("", "gptq", "awq", "auto-round", "intel/auto-round", "compressed-tensors", "modelopt", "quark", "bitsandbytes", "fp8"),
    *("torchao", "mxfp4"),
)
#: Patterns of layers that are matched: their time must not grow with 2 to the power of their length, as of (a*)*.
_LONGEST_PATTERN, _MOST_REPEATS, _MOST_CHOICES = 300, 4, 8


@dataclass(frozen=True, slots=True)
class Config:
    """The quantization of a checkpoint as its config.json states it.

    Attributes:
        stated: the object; empty where there is none.
        model: the whole of config.json; empty where there is none.
    """

    stated: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def zero_points_are_less_by_one(self) -> bool:
        """Whether GPTQ's zero points are stored less one, as in version 1, which is meant where no version is stated."""
        return self._version != "gptq_v2"

    @property
    def _version(self) -> str:
        return str(self.stated.get("checkpoint_format") or self.stated.get("format") or "")

    @property
    def dtype(self) -> str:
        """The type of the model's floats, of the language model where there are several; "" where it is not stated."""
        inner = self.model.get("text_config")
        for stated in (self.model, inner if isinstance(inner, dict) else {}):
            if found := stated.get("dtype") or stated.get("torch_dtype"):
                return str(found)
        return ""

    @property
    def cache_note(self) -> str:
        """That the quantization of the KV cache is not carried over; "" where none is stated."""
        stated = self.stated.get("kv_cache_scheme") or self.stated.get("kv_cache_quant_algo")
        return "the quantization of the KV cache, which config.json states, is left out" if stated else ""

    def require_known(self, layers: Mapping[str, tuple[Container, Parts]]) -> None:
        """Check what config.json states of all layers.

        Raises:
            UnsupportedError: a tool, or transforms of data, that change the meaning of the tensors.
            InvalidModelError: another tool than that of a layer's tensors, or groups of layers that are none.
        """
        method = str(self.stated.get("quant_method", "")).lower()
        if method not in _METHODS:
            raise UnsupportedError(f"config.json states quant_method {method!r}, which is not covered", rule="blocks-not-covered")
        for layer, (container, _) in layers.items() if method else ():
            if container.methods and method not in container.methods:
                raise InvalidModelError(
                    f"config.json states quant_method {method!r}, the tensors of the layer are those of {container.title}",
                    where=repr(layer),
                    rule="config-contradicts",
                )
        groups = self.stated.get("config_groups") or {}
        if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
            raise InvalidModelError("config.json states config_groups that are no objects", rule="damaged-config")
        if self.stated.get("transform_config"):
            raise UnsupportedError(
                "config.json states transform_config: data are transformed, which is not covered", rule="blocks-not-covered"
            )

    def require_block(self, layer: str, block: int, inputs: int) -> None:
        """Raise InvalidModelError where sizes of blocks are stated and none is what the tensors say."""
        weights = [group.get("weights") for group in self._groups]
        weights.append(self.quark_of_layer(layer).get("weight"))
        stated = [item.get("group_size") for item in weights if isinstance(item, dict)]
        own = self.of_layer(layer)
        stated += [own["group_size"]] if "group_size" in own and not own.get("dynamic") else []
        sizes = [inputs if size is None or size == -1 else _whole_number("group_size", size, layer) for size in stated]
        if sizes and block not in sizes and not (block == inputs and max(sizes) >= inputs):
            raise InvalidModelError(
                f"config.json states blocks of {' or '.join(map(str, sorted({*sizes})))} inputs, the tensors of the layer say {block}, of "
                f"{inputs} inputs",
                where=repr(layer),
                rule="config-contradicts",
            )

    def block_with_rest(self, layer: str, inputs: int, groups: int) -> int:
        """The stated size of blocks, if it does not divide the inputs, so that the last block is smaller; else 0."""
        stated = self.of_layer(layer).get("group_size")
        return stated if type(stated) is int and stated > 0 and inputs % stated and -(-inputs // stated) == groups else 0

    @property
    def _groups(self) -> list[Mapping[str, Any]]:
        """The groups of layers that compressed-tensors states."""
        return list((self.stated.get("config_groups") or {}).values())

    def group_of_layer(self, layer: str) -> Mapping[str, Any]:
        """What compressed-tensors or ModelOpt states of a layer: the group that names it, else the first that names a class of layers."""
        groups = self._groups
        if len(groups) < 2:
            return groups[0] if groups else {}
        targets = [[str(item) for item in found] if isinstance(found := group.get("targets"), list) else [] for group in groups]
        for group, names in zip(groups, targets, strict=True):
            if any(name == layer or (name.startswith("re:") and _matches(name[3:], layer)) for name in names):
                return group
        of_class = (group for group, names in zip(groups, targets, strict=True) if any(name.isalnum() for name in names))
        return next(of_class, groups[0])

    def block_of_layer(self, layer: str) -> tuple[int, int] | None:
        """Outputs and inputs of a block, where blocks with several of both are stated."""
        weights = self.group_of_layer(layer).get("weights")
        stated = weights.get("block_structure") if isinstance(weights, dict) else None
        stated = self.stated.get("weight_block_size") if stated is None else stated
        if stated is None:
            return None
        if not isinstance(stated, list) or len(stated) != 2 or any(type(size) is not int or size < 1 for size in stated):
            raise InvalidModelError(
                f"config.json states blocks of {stated!r}; two sizes are required", where=repr(layer), rule="damaged-config"
            )
        return stated[0], stated[1]

    def bits_of_layer(self, layer: str) -> int:
        """The bits of a code of a layer that has a byte for each: 8 where none are stated."""
        weights = self.group_of_layer(layer).get("weights")
        bits = weights.get("num_bits", 8) if isinstance(weights, dict) else 8
        return bits if type(bits) is int and 2 <= bits <= 8 else 8

    @property
    def gptq_note(self) -> str:
        """What is taken for granted of GPTQ; "" where it is stated."""
        if not self.stated:
            return "no quantization_config was found next to the file: zero points of GPTQ are taken for those of version 1"
        if not self._version:
            return "config.json states no checkpoint_format: zero points are taken for those of GPTQ v1, stored less one"
        return ""

    def of_layer(self, layer: str) -> Mapping[str, Any]:
        """What is stated of a layer under its path, by MLX as an entry of its own, by auto-round in `extra_config`; else for all."""
        extra = self.stated.get("extra_config")
        own = extra.get(layer) if isinstance(extra, dict) and layer in extra else self.stated.get(layer)
        return {**self.stated, **own} if isinstance(own, dict) else self.stated

    def quark_of_layer(self, layer: str) -> Mapping[str, Any]:
        """What is stated of a layer, in Quark's way: by the first pattern that it fits, else for all."""
        patterns = self.stated.get("layer_quant_config")
        for pattern, own in patterns.items() if isinstance(patterns, dict) else ():
            if isinstance(own, dict) and fnmatchcase(layer, pattern):
                return own
        found = self.stated.get("global_quant_config")
        return found if isinstance(found, dict) else {}

    def require_packing(self, layer: str, key: str, known: Collection[str]) -> None:
        """Raise UnsupportedError where a version of a format is stated that packs otherwise."""
        stated = str(self.stated.get(key) or "").lower()
        if stated and stated not in known:
            raise UnsupportedError(
                f"config.json states {key} {stated!r}, which is not covered", where=repr(layer), rule="blocks-not-covered"
            )

    def require_bits(self, layer: str, bits: int) -> None:
        """Raise InvalidModelError if the bits that are stated for all layers contradict the tensors."""
        stated = self.of_layer(layer).get("bits") if not self.stated.get("dynamic") else None  # which has others for single layers
        if stated is not None and _whole_number("bits", stated, layer) != bits:
            raise InvalidModelError(
                f"config.json states bits {stated}, the tensors of the layer say {bits}", where=repr(layer), rule="config-contradicts"
            )


def _whole_number(name: str, stated: Any, layer: str) -> int:
    if type(stated) is not int:
        raise InvalidModelError(
            f"config.json states {name} {stated!r}; a whole number is required", where=repr(layer), rule="damaged-config"
        )
    return stated


def _matches(pattern: str, layer: str) -> bool:
    """Whether a regular expression matches the start of a layer's path."""
    repeats = len(re.findall(r"[*+{?]", pattern))
    is_large = len(pattern) > _LONGEST_PATTERN or repeats > _MOST_REPEATS or pattern.count("|") > _MOST_CHOICES
    if is_large or re.search(r"\)[*+{?]", pattern):
        raise UnsupportedError(
            f"config.json states the pattern {pattern[:40]!r} of layers, which is not covered", rule="blocks-not-covered"
        )
    try:
        return re.match(pattern, layer) is not None
    except re.error as error:
        raise InvalidModelError(f"config.json states the pattern {pattern[:40]!r} of layers: {error}", rule="damaged-config") from error


def read_config(path: Path) -> Config:
    """The quantization that is stated next to a checkpoint.

    Raises:
        InvalidModelError: the file, or what it states, is no JSON object, or it is too large to be one.
    """
    model: Mapping[str, Any] = {}
    for name in FILES_OF_CONFIG:
        file = path.parent / name
        if not file.exists():
            continue
        stated = found = json_next_to(file, _LARGEST)
        if name == FILES_OF_CONFIG[0] and isinstance(found, dict):
            model = found
            inner = found.get("text_config")
            places = [found, *([inner] if isinstance(inner, dict) else [])]
            stated = next((place[key] for place in places for key in KEYS_OF_CONFIG if place.get(key)), {})
        if not isinstance(stated, dict):
            raise InvalidModelError(f"{name}, or the quantization that it states, is no object", rule="damaged-config")
        if stated:
            return Config(stated, model)
    return Config({}, model)
