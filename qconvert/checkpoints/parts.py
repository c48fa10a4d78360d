"""A layer of a checkpoint: its tensors by their names, and what config.json states of it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from qconvert.arithmetic.storage import Array
from qconvert.checkpoints.config import Config
from qconvert.checkpoints.weight import dtype_of
from qconvert.errors import InvalidModelError, UnsupportedError

#: Patterns of layers that are matched: their time must not grow with 2 to the power of their length, as of (a*)*.
_LONGEST_PATTERN, _MOST_REPEATS, _MOST_CHOICES = 300, 4, 8
#: What the length of a path to the power of the repeats of a pattern may be, as of .*.*: a second of time or less.
_MOST_STEPS = 10**8


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of a layer.

    Attributes:
        layer: its path, such as "model.layers.0.mlp.down_proj".
        tensors: by their names below it, such as "qweight".
        stated: what the header of the file says of the weight; empty where it says nothing.
        config: what config.json states of the checkpoint.
        in_columns: whether the words of the weight are to lie in memory column by column, where they are made and not viewed.
    """

    layer: str
    tensors: Mapping[str, Array]
    stated: Mapping[str, Any] = field(default_factory=dict)
    config: Config = field(default_factory=lambda: Config({}))
    in_columns: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def dtype(self, name: str) -> str:
        """The type of a tensor; "" if there is none of this name."""
        found = self.tensors.get(name)
        return "" if found is None else found.dtype.name

    def join_experts(self) -> tuple[Parts, int]:
        """The tensors with the rows of one expert after those of another, and how many experts there are; 0 where `weight` is a matrix."""
        shape = self.tensors["weight"].shape
        if len(shape) != 3 or not shape[0]:
            return self, 0
        if any(tensor.ndim != 3 or tensor.shape[:2] != shape[:2] for tensor in self.tensors.values()):
            raise self.shapes_error(*self.tensors)
        return replace(self, tensors={name: tensor.reshape(-1, tensor.shape[2]) for name, tensor in self.tensors.items()}), shape[0]

    def words(self, name: str) -> Array:
        """A tensor of packed words: int32 or uint32 with two axes, as uint32."""
        found = self.tensors.get(name)
        if found is not None and found.ndim == 3:
            raise self.unsupported(f"{name} has 3 axes: experts in one tensor are not covered here", rule="blocks-not-covered")
        if found is None or found.dtype not in (np.int32, np.uint32) or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, "int32 with 2 axes")
        return found.view(np.uint32)

    def matrix(self, name: str, dtype: str) -> Array:
        """A tensor of two axes and one type."""
        found = self.tensors.get(name)
        if found is None or found.dtype.name != dtype or found.ndim != 2 or not found.size:
            raise self.tensor_error(name, f"{dtype} with 2 axes")
        return found

    def scales(self, name: str, axes: Collection[int] = (2,)) -> Array:
        """Floats, all of them finite; a block of zeros may have a scale of 0, and one of -8 to 7 a negative scale."""
        found = self.tensors.get(name)
        if found is None or found.ndim not in axes or not found.size or not is_float(found):
            raise self.tensor_error(name, f"a tensor of floats with {' or '.join(map(str, axes))} axes")
        self.require_finite(name, found)
        return found

    def small_scales(self, name: str, dtype: str) -> Array:
        """Scales of 8 bits, all of them finite, as numbers of their type, E4M3 or E8M0; files have bytes where they have no name for it."""
        found = self.matrix(name, self.dtype(name) if self.dtype(name) == dtype else "uint8").view(dtype_of(dtype))
        self.require_finite(name, found)
        return found

    def require_finite(self, name: str, scales: Array) -> None:
        """Raise InvalidModelError where a scale is no finite number."""
        if not np.isfinite(scales).all():
            raise self.invalid(f"{name} has a scale that is not finite", rule="scale-not-finite")

    def number(self, name: str) -> Array:
        """One float32 that is finite and not 0, as [1, 1]."""
        found = self.tensors.get(name)
        if found is None or found.size != 1 or not is_float(found) or not np.isfinite(found).all() or not found.any():
            raise self.invalid(f"{name} is missing, 0 or not finite", rule="scale-not-finite")
        return found.astype(np.float32).reshape(1, 1)

    def factors(self, inputs: int) -> Array | None:
        """What ModelOpt multiplies data by first, float32 [K]; None for nothing."""
        if "pre_quant_scale" not in self:
            return None
        found = self.scales("pre_quant_scale", (1,))
        if len(found) != inputs:
            raise self.invalid(
                f"pre_quant_scale has shape {list(found.shape)}; one for each of {inputs} inputs is required", rule="counts-differ",
            )  # fmt: skip
        return found.astype(np.float32)

    @property
    def own(self) -> Mapping[str, Any]:
        """What config.json states of the layer: by its path, MLX in an entry of its own, auto-round in `extra_config`; else of all."""
        stated = self.config.stated
        extra = stated.get("extra_config")
        own = extra.get(self.layer) if isinstance(extra, dict) and self.layer in extra else stated.get(self.layer)
        return {**stated, **own} if isinstance(own, dict) else stated

    @property
    def quark(self) -> Mapping[str, Any]:
        """What config.json states of the layer in Quark's way: by the first pattern that it fits, else for all."""
        patterns = self.config.stated.get("layer_quant_config")
        for pattern, own in patterns.items() if isinstance(patterns, dict) else ():
            if isinstance(own, dict) and fnmatchcase(self.layer, pattern):
                return own
        found = self.config.stated.get("global_quant_config")
        return found if isinstance(found, dict) else {}

    @property
    def group(self) -> Mapping[str, Any]:
        """What compressed-tensors or ModelOpt states of the layer: the group that names it, else the first that names a class of layers."""
        groups = self.config.groups
        if len(groups) < 2:
            return groups[0] if groups else {}
        targets = [[str(item) for item in found] if isinstance(found := group.get("targets"), list) else [] for group in groups]
        for group, names in zip(groups, targets, strict=True):
            if any(name == self.layer or (name.startswith("re:") and _matches(name[3:], self.layer)) for name in names):
                return group
        of_class = (group for group, names in zip(groups, targets, strict=True) if any(name.isalnum() for name in names))
        return next(of_class, groups[0])

    @property
    def square(self) -> tuple[int, int] | None:
        """Outputs and inputs of a block, where config.json states blocks with several of both."""
        weights = self.group.get("weights")
        stated = weights.get("block_structure") if isinstance(weights, dict) else None
        stated = self.config.stated.get("weight_block_size") if stated is None else stated
        if stated is None:
            return None
        if not isinstance(stated, list) or len(stated) != 2 or any(type(size) is not int or size < 1 for size in stated):
            raise self.invalid(f"config.json states blocks of {stated!r}; two sizes are required", rule="damaged-config")
        return stated[0], stated[1]

    @property
    def byte_bits(self) -> int:
        """The bits of a code of a layer that has a byte for each: 8 where none are stated."""
        weights = self.group.get("weights")
        bits = weights.get("num_bits", 8) if isinstance(weights, dict) else 8
        return bits if type(bits) is int and 2 <= bits <= 8 else 8

    def require_block(self, block: int, inputs: int) -> None:
        """Raise InvalidModelError where sizes of blocks are stated and none is what the tensors say."""
        weights = [group.get("weights") for group in self.config.groups]
        weights.append(self.quark.get("weight"))
        stated = [item.get("group_size") for item in weights if isinstance(item, dict)]
        own = self.own
        stated += [own["group_size"]] if "group_size" in own and not own.get("dynamic") else []
        sizes = [inputs if size is None or size == -1 else self._whole_number("group_size", size) for size in stated]
        if sizes and block not in sizes and not (block == inputs and max(sizes) >= inputs):
            raise self.invalid(
                f"config.json states blocks of {' or '.join(map(str, sorted({*sizes})))} inputs, the tensors of the layer say {block}, of "
                f"{inputs} inputs",
                rule="config-contradicts",
            )

    def block_with_rest(self, inputs: int, groups: int) -> int:
        """The stated size of blocks, if it does not divide the inputs, so that the last block is smaller; else 0."""
        stated = self.own.get("group_size")
        return stated if type(stated) is int and stated > 0 and inputs % stated and -(-inputs // stated) == groups else 0

    def require_packing(self, key: str, known: Collection[str]) -> None:
        """Raise UnsupportedError where a version of a format is stated that packs otherwise."""
        stated = str(self.config.stated.get(key) or "").lower()
        if stated and stated not in known:
            raise self.unsupported(f"config.json states {key} {stated!r}, which is not covered", rule="blocks-not-covered")

    def require_bits(self, bits: int) -> None:
        """Raise InvalidModelError if the bits that are stated for all layers contradict the tensors."""
        stated = self.own.get("bits") if not self.config.stated.get("dynamic") else None  # which has others for single layers
        if stated is not None and self._whole_number("bits", stated) != bits:
            raise self.invalid(f"config.json states bits {stated}, the tensors of the layer say {bits}", rule="config-contradicts")

    def _whole_number(self, name: str, stated: Any) -> int:
        if type(stated) is not int:
            raise self.invalid(f"config.json states {name} {stated!r}; a whole number is required", rule="damaged-config")
        return stated

    def invalid(self, reason: str, *, rule: str) -> InvalidModelError:
        """The error of what no tool writes."""
        return InvalidModelError(reason, where=repr(self.layer), rule=rule)

    def unsupported(self, reason: str, *, rule: str, remedy: str = "") -> UnsupportedError:
        """The error of what is not covered."""
        return UnsupportedError(reason, where=repr(self.layer), remedy=remedy, rule=rule)

    def tensor_error(self, name: str, wanted: str) -> InvalidModelError:
        """The error of a tensor that is missing or of another type."""
        found = self.tensors.get(name)
        what = "missing" if found is None else f"{found.dtype} of shape {list(found.shape)}"
        return self.invalid(f"{name} is {what}; {wanted} is required", rule="wrong-type")

    def shapes_error(self, *names: str) -> InvalidModelError:
        """The error of tensors whose shapes do not fit each other."""
        shapes = ", ".join(f"{name} {list(self.tensors[name].shape)}" for name in names if name in self.tensors)
        return self.invalid(f"{shapes} do not fit each other", rule="blocks-do-not-fit")


def _matches(pattern: str, layer: str) -> bool:
    """Whether a regular expression matches the start of a layer's path."""
    repeats = len(re.findall(r"[*+{?]", pattern))
    is_large = len(pattern) > _LONGEST_PATTERN or repeats > _MOST_REPEATS or pattern.count("|") > _MOST_CHOICES
    if is_large or len(layer) ** repeats > _MOST_STEPS or re.search(r"\)[*+{?]", pattern):
        raise UnsupportedError(
            f"config.json states the pattern {pattern[:40]!r} of layers, which is not covered", rule="blocks-not-covered"
        )
    try:
        return re.match(pattern, layer) is not None
    except re.error as error:
        raise InvalidModelError(f"config.json states the pattern {pattern[:40]!r} of layers: {error}", rule="damaged-config") from error


def expand_blocks(parts: Parts, name: str, numbers: Array, sizes: tuple[int, int]) -> Array:
    """Numbers of blocks of a weight [N, K] as one for each output and block of inputs: [N, G].

    Args:
        parts: of the layer. Blocks with several outputs have 128 x 128 weights where config.json does not state their sizes.
        name: of the tensor that `numbers` are of, for messages.
        numbers: one, [N], [N, G], or of blocks with several outputs [R, C] or [R, 1, C, 1].
        sizes: N and K.

    Raises:
        InvalidModelError: there are not as many as the weight has blocks, or config.json states another size.
    """
    outputs, inputs = sizes
    if numbers.size == 1:
        return np.repeat(numbers.reshape(1, 1), outputs, axis=0)
    if numbers.ndim == 4 and numbers.shape[1] == numbers.shape[3] == 1:
        numbers = numbers[:, 0, :, 0]
    if numbers.shape == (outputs,):
        numbers = numbers[:, None]
    stated = parts.square
    if numbers.ndim != 2:
        raise parts.shapes_error("weight", "weight_packed", name)
    if stated is None and len(numbers) == outputs:
        if inputs % numbers.shape[1]:
            raise parts.shapes_error("weight", "weight_packed", name)
        parts.require_block(inputs // numbers.shape[1], inputs)
        return numbers
    high, wide = stated or (128, 128)
    if numbers.shape != (-(-outputs // high), -(-inputs // wide)):
        raise parts.shapes_error("weight", "weight_packed", name)
    return divide_blocks(np.repeat(numbers, high, axis=0)[:outputs], inputs, wide)


def divide_blocks(numbers: Array, inputs: int, block: int) -> Array:
    """Numbers of blocks, of which the last may have fewer inputs than the others, as those of smaller blocks of one size."""
    return numbers[:, np.arange(0, inputs, math.gcd(block, inputs)) // block] if inputs % block else numbers


def is_float(numbers: Array) -> bool:
    """Whether numbers are floats, those of ml_dtypes among them."""
    return numbers.dtype.kind == "f" or numbers.dtype.name in ("bfloat16", "float8_e4m3fn")
