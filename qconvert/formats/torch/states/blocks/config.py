"""What config.json, next to a checkpoint, says of its quantization (`quantization_config`), and what follows where it says nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qconvert.errors import InvalidModelError, UnsupportedError
from qconvert.files.documents import json_next_to

__all__ = ["Config", "read_config"]

_LARGEST = 16_000_000
#: Files that hold it, the first one under a key.
_FILES = ("config.json", "quantize_config.json", "quantization_config.json")


@dataclass(frozen=True, slots=True)
class Config:
    """The quantization of a checkpoint as its config.json states it.

    Attributes:
        stated: the object; empty where there is none.
    """

    stated: Mapping[str, Any]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken for granted."""
        if not self.stated:
            return ("no quantization_config was found next to the file: zero points of GPTQ are taken for those of version 1",)
        if self.method == "gptq" and not self._version:
            return ("config.json states no checkpoint_format: zero points are taken for those of GPTQ v1, stored less one",)
        return ()

    @property
    def method(self) -> str:
        """quant_method, in small letters; "" where it is not stated."""
        return str(self.stated.get("quant_method", "")).lower()

    @property
    def zero_points_are_less_by_one(self) -> bool:
        """Whether GPTQ's zero points are stored less one, as in version 1, which is meant where no version is stated."""
        return self._version != "gptq_v2"

    @property
    def _version(self) -> str:
        return str(self.stated.get("checkpoint_format") or self.stated.get("format") or "")

    @property
    def format(self) -> str:
        """What the checkpoint's format is called."""
        if self.method == "gptq" or not self.method:
            return "GPTQ v2" if not self.zero_points_are_less_by_one else "GPTQ v1"
        return {"awq": "AWQ", "modelopt": "ModelOpt"}.get(self.method, self.method)

    def require_packing(self, layer: str, key: str, known: Collection[str]) -> None:
        """Raise UnsupportedError where a version of a format is stated that packs otherwise."""
        stated = str(self.stated.get(key) or "").lower()
        if stated and stated not in known:
            raise UnsupportedError(
                f"config.json states {key} {stated!r}, which is not covered", where=repr(layer), rule="blocks-not-covered"
            )

    def require(self, name: str, found: int, where: str) -> None:
        """Raise InvalidModelError where a number is stated for all layers that is not what the tensors say."""
        stated = self.stated.get(name) if not self.stated.get("dynamic") else None  # which has others for single layers
        if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 and stated != found:
            raise InvalidModelError(
                f"config.json states {name} {stated}, the tensors of the layer say {found}", where=repr(where), rule="config-contradicts"
            )


def read_config(path: Path) -> Config:
    """The quantization that is stated next to a checkpoint.

    Raises:
        InvalidModelError: the file is no JSON object, or too large to be one.
    """
    for name in _FILES:
        file = path.parent / name
        if not file.is_file():
            continue
        found = json_next_to(file, _LARGEST)
        stated = found.get("quantization_config") if isinstance(found, dict) and name == _FILES[0] else found
        if isinstance(stated, dict) and stated:
            return Config(stated)
    return Config({})
