"""What calibration finds: the quantization of each tensor, with what was seen of it, and what quantizing it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qconvert.calibration.observer import Histogram
from qconvert.calibration.sensitivity import Sensitivity
from qconvert.encodings import Encodings, QParams
from qconvert.graph import Graph
from qconvert.tables import Rows, Shown, format_sentence, format_text, numbers

__all__ = ["Calibration", "TensorReport", "warning_of_tensors"]

#: The share of clipped values and the SQNR in dB beyond which a tensor is warned of.
_CLIPPED, _LEAST_DB = 0.01, 10.0
#: Tensors that a warning names.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What calibration found of one tensor, and of those that share its quantization.

    Attributes:
        names: of the tensors.
        lowest, highest: the extremes that were seen.
        qparams: what was chosen.
        origin: who chose it.
        sqnr_db: signal to noise of the values with the quantization; None where nothing is rounded away.
        clipped: the share of values beyond the quantization.
        histogram: of the values, where the method counts them.
    """

    names: tuple[str, ...]
    lowest: float
    highest: float
    qparams: QParams
    origin: str
    sqnr_db: float | None = None
    clipped: float = 0.0
    histogram: Histogram | None = None

    @property
    def range(self) -> tuple[float, float]:
        """The float values that the smallest and the largest stored value stand for."""
        q = self.qparams.quantization
        low, high = (float((limit - int(q.zero_point[0])) * float(q.scale[0])) for limit in q.limits(self.qparams.dtype))
        return low, high

    @property
    def is_poor(self) -> bool:
        """Whether more than 1% of the values are clipped, or less than 10 dB is left of them."""
        return self.clipped > _CLIPPED or (self.sqnr_db is not None and self.sqnr_db < _LEAST_DB)


def warning_of_tensors(reports: Sequence[TensorReport]) -> str:
    """Return the warning that names tensors with poor quantizations, the worst first; "" without any."""
    poor = sorted((item for item in reports if item.is_poor), key=lambda item: math.inf if item.sqnr_db is None else item.sqnr_db)
    if not poor:
        return ""
    named = ", ".join(
        f"{item.names[0]!r} ({100 * item.clipped:.3g}% clipped" + ("" if item.sqnr_db is None else f", {item.sqnr_db:.1f} dB") + ")"
        for item in poor[:_NAMED]
    )
    more = f" and {len(poor) - _NAMED} more" if len(poor) > _NAMED else ""
    verb = "activation is" if len(poor) == 1 else "activations are"
    limits = f"clipped by more than {100 * _CLIPPED:g}% of the values, or keeps less than {_LEAST_DB:g} dB"
    return f"{len(poor)} {verb} {limits if len(poor) == 1 else limits.replace('keeps', 'keep')}: {named}{more}"


@dataclass(frozen=True, slots=True, repr=False)
class Calibration(Shown):
    """What calibrate() found.

    Attributes:
        graph: the float network that the encodings are of.
        encodings: of its tensors.
        tensors: activations, in the order of the graph.
        samples: how many were seen.
        sensitivity: what quantizing each tensor alone costs the outputs, the worst first; () without it.
        kept_float: tensors that stay float because they cost most.
        is_changed: whether weights or biases of the network differ from the model's; encodings do not hold such changes.
        notes: what the user should know.
        warnings: which tensors have poor scales, and whether the outputs lose much compared with min-max.
    """

    graph: Graph
    encodings: Encodings
    tensors: tuple[TensorReport, ...]
    samples: int
    sensitivity: tuple[Sensitivity, ...] = ()
    kept_float: tuple[str, ...] = ()
    is_changed: bool = False
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """How many activations have scales, and the signal-to-noise ratio of the worst."""
        known = [item.sqnr_db for item in self.tensors if item.sqnr_db is not None]
        worst = f"; the worst activation has {min(known):.1f} dB" if known else ""
        name = format_text(self.graph.name) or "The network"
        return f"{name}: scales of {len(self.tensors)} activations from {self.samples} samples{worst}."

    def tables(self) -> tuple[Rows, ...]:
        """The scale and zero point of each activation, and what quantizing each tensor alone costs."""
        rows = tuple(
            (format_text(" = ".join(item.names)), f"{item.lowest:.6g}", f"{item.highest:.6g}",
             f"{item.range[0]:.6g}", f"{item.range[1]:.6g}",
             numbers(item.qparams.quantization.scale), "" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB",
             f"{100 * item.clipped:.3g}%", format_text(item.origin))
            for item in self.tensors
        )  # fmt: skip
        costs = tuple(
            (format_text(" = ".join(one.names)), "none" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB") for one in self.sensitivity
        )
        columns = ("tensor", ">lowest seen", ">highest seen", ">range from", ">to", ">scale", ">SQNR", ">clipped", "chosen by")
        return (
            Rows("Activations", columns, rows, note=f"{self.samples} samples.", folded=len(rows) > 60),
            Rows("What quantizing each alone costs the outputs", ("tensor", ">SQNR of the outputs"), costs, folded=len(costs) > 60),
            Rows("Warnings", ("in words",), tuple((format_sentence(text),) for text in self.warnings)),
            Rows("Notes", ("in words",), tuple((format_sentence(text),) for text in self.notes)),
        )
