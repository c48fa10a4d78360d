"""How the data of a layer are rounded before its product, as configurations of checkpoints state it.

compressed-tensors says `input_activations` in a group of layers, Quark `input_tensors`, ModelOpt an algorithm, and DeepSeek's FP8
`activation_scheme`. A scale that is not computed at each run is a tensor of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qconvert.checkpoints.parts import Parts
    from qconvert.errors import UnsupportedError


#: Values that share a power of two as their scale (OCP Microscaling Formats 1.0).
POWERS_BLOCK = 32
#: The second level of scales of NVFP4, by which compressed-tensors divides.
_GLOBAL = "input_global_scale"


@dataclass(frozen=True, slots=True)
class Activations:
    """How data are rounded.

    Attributes:
        dtype: the type that they are rounded to, such as "int8" or "float8e4m3fn".
        strategy: which values share a scale: "tensor" for all, "token" for a row, "group" for some of a row.
        group: how many values a group has; 0 for another strategy.
        is_symmetric: whether the zero point is 0.
        is_dynamic: whether scales are computed from the data at each run.
        has_powers: whether scales are powers of two.
        scale: of all data, where it is not computed at each run; where those of groups are too, a second level of them.
        zero: the zero point with it.
        scale_divides: whether scales of groups are divided by it.
    """

    dtype: str
    strategy: str
    group: int = 0
    is_symmetric: bool = True
    is_dynamic: bool = True
    has_powers: bool = False
    scale: float | None = None
    zero: int = 0
    scale_divides: bool = False

    @property
    def has_two_levels(self) -> bool:
        """Whether scales of groups are computed at each run and have a second level that is not: NVFP4."""
        return self.is_dynamic and self.dtype == "float4e2m1" and self.strategy == "group" and not self.has_powers

    def __str__(self) -> str:
        if not self.is_dynamic:
            return f"{self.dtype} with one scale" + ("" if self.scale is None else f", {self.scale:.6g}")
        of = f"group of {self.group}" if self.group else self.strategy
        level = ", a power of two" if self.has_powers else ""
        if self.scale is not None:
            level = f", {'divided by' if self.scale_divides else 'times'} {self.scale:.6g}"
        return f"{self.dtype} with a scale for each {of} at each run{level}"


_NVFP4 = Activations("float4e2m1", "group", 16)


def read_activations(parts: Parts) -> Activations | None:
    """How the data of a layer are rounded; None where they stay float.

    Raises:
        InvalidModelError: a scale is stated that the layer does not have, or it has one that nobody stated.
        UnsupportedError: they are rounded in a way that is not covered.
    """
    stated = _state_activations(parts)
    found = [name for name in ("input_scale", "activation_scale", _GLOBAL) if name in parts]
    if len(found) > 1:
        raise parts.invalid(f"the layer has both {' and '.join(found)}", rule="config-contradicts")
    if not found:
        if stated is not None and (not stated.is_dynamic or stated.has_two_levels):
            raise parts.invalid(
                "config.json states one scale for all data of the layer (input_scale), which the file lacks",
                rule="config-contradicts",
            )
        return stated
    name, scale = found[0], float(parts.number(found[0])[0, 0])
    if scale < 0:
        raise parts.invalid(f"{name} is {scale:.6g}; a positive scale is required", rule="scale-not-positive")
    if stated is not None and stated.has_two_levels:
        return replace(stated, scale=scale, scale_divides=name == _GLOBAL)
    if stated is None and name != _GLOBAL:
        stated = Activations("int8" if parts.dtype("weight") == "int8" else "float8e4m3fn", "tensor", is_dynamic=False)
    if stated is None or stated.is_dynamic or name == _GLOBAL:
        raise parts.invalid(
            f"the layer has {name}, and config.json states that data stay float or that all scales of them are computed at each run",
            rule="config-contradicts",
        )
    zero = parts.tensors.get("input_zero_point")
    if zero is not None and (zero.size != 1 or zero.dtype.kind not in "iu"):
        raise parts.tensor_error("input_zero_point", "one integer")
    point = 0 if zero is None else int(zero.reshape(-1)[0])
    return replace(stated, scale=scale, zero=point, is_symmetric=stated.is_symmetric and not point)


def _state_activations(parts: Parts) -> Activations | None:
    """What the configuration says, without the scale."""
    if found := parts.group.get("input_activations"):
        return _of_compressed_tensors(found, parts)
    if found := parts.quark.get("input_tensors"):
        return _of_quark(found, parts)
    config = parts.config.stated
    algorithm = str(config.get("quant_algo") or "").upper()
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        return Activations("float8e4m3fn", "token")
    if algorithm == "NVFP4" and "input_scale" in parts:
        return _NVFP4
    if algorithm == "MXFP8":
        return Activations("float8e4m3fn", "group", POWERS_BLOCK, has_powers=True)
    scheme = config.get("activation_scheme")
    if scheme is None:
        return None
    if scheme == "static":
        return Activations("float8e4m3fn", "tensor", is_dynamic=False)
    if scheme != "dynamic":
        raise _not_covered(parts, f"activation_scheme {scheme!r}")
    has_powers = config.get("scale_fmt") == "ue8m0"
    size = parts.square
    return Activations("float8e4m3fn", "group", size[1], has_powers=has_powers) if size else Activations("float8e4m3fn", "token")


_TYPES = {"8 float": "float8e4m3fn", "4 float": "float4e2m1", "8 int": "int8", "4 int": "int4"}
_QUARK_TYPES = {"int8": "int8", "int4": "int4", "fp8_e4m3": "float8e4m3fn", "fp4": "float4e2m1"}
_QUARK_STRATEGIES = {"per_tensor": "tensor", "per_channel": "token", "per_group": "group"}


def _of_compressed_tensors(found: Any, parts: Parts) -> Activations:
    own: Mapping[str, Any] = found if isinstance(found, dict) else {}
    dynamic, kind = own.get("dynamic", False), f"{own.get('num_bits')} {own.get('type')}"
    usual = {"strategy": "tensor_group", "symmetric": True, "scale_dtype": "torch.float8_e4m3fn"}  # ModelOpt states none of them
    is_usual = all(own.get(key) in (None, value) for key, value in usual.items())
    has_two_levels = dynamic == "local" or (not dynamic and "strategy" not in own)
    if kind == "4 float" and own.get("group_size") == _NVFP4.group and is_usual and has_two_levels:
        return _NVFP4
    if not isinstance(dynamic, bool):
        raise _not_covered(parts, f"dynamic {dynamic!r}")
    strategy = str(own.get("strategy") or ("token" if dynamic else "tensor"))
    has_powers = str(own.get("scale_dtype")) == "torch.uint8"
    return _check_covered(own, parts, Activations(_TYPES.get(kind, kind), strategy, is_dynamic=dynamic, has_powers=has_powers))


def _of_quark(found: Any, parts: Parts) -> Activations:
    own: Mapping[str, Any] = found if isinstance(found, dict) else {}
    kind, strategy, has_powers = str(own.get("dtype")), str(own.get("qscheme")), own.get("scale_format") == "e8m0"
    made = Activations(
        _QUARK_TYPES.get(kind, kind),
        _QUARK_STRATEGIES.get(strategy, strategy),
        is_dynamic=bool(own.get("is_dynamic")),
        has_powers=has_powers,
    )
    return _check_covered(own, parts, made)


def _check_covered(stated: Mapping[str, Any], parts: Parts, made: Activations) -> Activations:
    """The activations with the size of a group and the symmetry, which two tools state alike."""
    size: Any = stated.get("group_size") if made.strategy == "group" else 0
    is_known = made.dtype in _TYPES.values() and (made.is_dynamic or made.strategy == "tensor")
    has_size = size == 0 if made.strategy in ("tensor", "token") else made.strategy == "group" and type(size) is int and size > 0
    if not (is_known and has_size):
        when = "at each run" if made.is_dynamic else "before"
        raise _not_covered(parts, f"{made.dtype} by scales of strategy {made.strategy!r} and group_size {size!r}, computed {when}")
    return replace(made, group=size, is_symmetric=stated.get("symmetric") is not False)


def _not_covered(parts: Parts, what: str) -> UnsupportedError:
    return parts.unsupported(f"config.json states that data are rounded too, as {what}, which is not covered", rule="dynamic-operator")
