"""The quantization stated by config.json next to a checkpoint (`quantization_config`), and the defaults for entries it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files.documents import json_next_to

if TYPE_CHECKING:
    from qconvert.checkpoints.container import Container
    from qconvert.checkpoints.parts import Parts

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

    @property
    def groups(self) -> list[Mapping[str, Any]]:
        """The groups of layers that compressed-tensors states."""
        return list((self.stated.get("config_groups") or {}).values())

    @property
    def gptq_note(self) -> str:
        """What is taken for granted of GPTQ; "" where it is stated."""
        if not self.stated:
            return "no quantization_config was found next to the file: zero points of GPTQ are taken for those of version 1"
        if not self._version:
            return "config.json states no checkpoint_format: zero points are taken for those of GPTQ v1, stored less one"
        return ""


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
