"""What a calibration is told: the keywords of calibrate(), their types and defaults, and the flags that the command line makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_type_hints

from qconvert.arguments import Progress, no_progress, require_fitting
from qconvert.calibration.methods import METHODS
from qconvert.calibration.weights import WEIGHT_METHODS
from qconvert.data import Preparation
from qconvert.errors import require_word
from qconvert.plugins import Option
from qconvert.plugins.options import ReadOptions

#: Storage types.
ACTIVATIONS, WEIGHTS = ("int8", "uint8", "int16", "uint16"), ("int8", "int4", "int2", "int16")
_TYPES = {"str": str, "bool": bool, "int": int}


class CalibrateOptions(ReadOptions, total=False):
    """The keywords of calibrate().

    Attributes:
        format: the name of the model's format, if suffix and content do not determine it.
        method: how ranges of activations are chosen; calibration.METHODS lists them.
        activations: storage type of activations.
        symmetric: whether their zero point is in the middle; by default what the method asks for, or the target's file of scales.
        weights: storage type of weights, whose quantizations are symmetric.
        weights_method: how their scales are chosen; calibration.WEIGHT_METHODS lists them.
        per_channel: whether weights have a scale for each output channel.
        equalization: whether channels between layers are scaled first so that weights have equal ranges.
        bias_correction: whether biases take off what rounded weights add to the means of channels.
        sensitivity: whether each tensor is also quantized by itself, to see what that costs the outputs.
        keep_float: how many of the tensors that cost most stay float.
        skip: names of tensors, or operators, that stay float.
        histograms: whether values are counted for a plot, whatever the method needs.
        target: the one target that the quantizations have to suit; by default they suit TFLite and ONNX.
        strict: whether what is warned of is an error: activations of which more than 1% is clipped or less than 10 dB is left, and
            outputs that lose more than 20 dB compared with min-max.
        samples: how many at most; by default all.
        preparation: of images, and of real numbers in files.
        runtime: what runs the network: "onnxruntime" or "litert".
        jobs: how many processes of this machine run it; 0 for as many as it has cores.
        scheduler: the address of a dask.distributed scheduler, whose workers run it.
        progress: is called with (what, done, total).
        bits, clamp, constant, levels, pack, percentile: options of methods (docs/calibration.md).
    """

    format: str
    method: str
    activations: Literal["int8", "uint8", "int16"]
    symmetric: bool | None
    weights: Literal["int8", "int4"]
    weights_method: str
    per_channel: bool
    equalization: bool
    bias_correction: bool
    sensitivity: bool
    keep_float: int
    skip: tuple[str, ...]
    histograms: bool
    target: str
    strict: bool
    samples: int | None
    preparation: Preparation | None
    runtime: Literal["onnxruntime", "litert"]
    jobs: int
    scheduler: str
    progress: Progress
    bits: int
    clamp: int
    constant: float
    levels: int
    pack: int
    percentile: float


def _flag(default: Any, help: str, choices: Iterable[str] = (), *, least: int | None = None, is_rare: bool = False) -> Any:
    """A setting that the command line has a flag for; `--help` leaves out a rare one."""
    return field(default=default, metadata={"help": help, "choices": tuple(choices), "least": least, "is_rare": is_rare})


@dataclass(frozen=True, slots=True)
class Settings:
    """How a network is calibrated; CalibrateOptions explains the fields, and `method_options` are those of the method."""

    method: str = _flag(
        "min-max", f"How ranges are chosen: {', '.join(METHODS)}; min-max by default. A method has options of its own, for -O.", METHODS
    )
    activations: str = _flag("int8", "Storage type of activations: int8 (the default), uint8, int16.", ACTIVATIONS)
    symmetric: bool | None = None
    weights: str = _flag("int8", "Storage type of weights: int8 (the default), int4.", WEIGHTS)
    weights_method: str = _flag("max-abs", "How scales of weights are chosen: max-abs (the default), mse, admm.", WEIGHT_METHODS)
    per_channel: bool = True
    equalization: bool = _flag(False, "First scale channels between layers, so that weights have equal ranges.")
    bias_correction: bool = _flag(False, "Take off biases what rounded weights add to the means of channels.")
    sensitivity: bool = _flag(False, "Say which tensors cost the outputs most.")
    keep_float: int = _flag(0, "Leave as many of the tensors that cost most float.", least=0)
    skip: tuple[str, ...] = _flag((), "A tensor or operator that stays float; repeatable.")
    histograms: bool = False
    target: str = ""
    strict: bool = _flag(False, "Write nothing where a tensor is clipped by over 1% or keeps under 10 dB, or outputs lose 20 dB.")
    samples: int | None = _flag(None, "How many inputs at most; by default all.", least=1)
    preparation: Preparation | None = None
    runtime: str = _flag("onnxruntime", "What runs the model: onnxruntime or litert.", ("onnxruntime", "litert"), is_rare=True)
    jobs: int = 1
    scheduler: str = _flag("", "Address of a dask.distributed scheduler whose workers run it.", is_rare=True)
    progress: Progress = no_progress
    method_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The settings of keywords of calibrate().

        Raises:
            OptionError: one is of another type, or a storage type is unknown. The method raises it for its own.
        """
        own = {item.name: given[item.name] for item in fields(cls) if item.name in given}
        require_fitting("calibrate()", cls, get_type_hints(cls), own)
        found = cls(**own, method_options={name: value for name, value in given.items() if name not in own})
        require_word("activations", found.activations, ACTIVATIONS)
        require_word("weights", found.weights, WEIGHTS)
        return found


def setting_flags() -> dict[Option, str | None]:
    """The settings that the command line has flags for: option -> "", or None where `--help` leaves it out."""
    return {
        Option(
            item.name, _TYPES.get(str(item.type).partition(" ")[0], str), item.default, item.metadata["help"], item.metadata["choices"],
            least=item.metadata["least"], many=item.default == (),
        ): None if item.metadata["is_rare"] else ""
        for item in fields(Settings)
        if item.metadata
    }  # fmt: skip
