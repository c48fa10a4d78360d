"""What calibration finds: the quantization of each tensor, with what was seen of it; and how good these are: the noise of rounding in each
tensor and in the outputs, and what quantizing a tensor by itself costs the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from qconvert.arguments import Progress
from qconvert.arithmetic import affine_range
from qconvert.calibration.observer import Histogram
from qconvert.calibration.observing import Watching, write_for_runtime
from qconvert.encodings import Encodings, Place, QParams
from qconvert.errors import format_count
from qconvert.files.system import temporary_folder
from qconvert.graph import Array, Arrays, Graph
from qconvert.passes.apply_encodings import insert_qdq
from qconvert.tables import Rows, Shown, format_sentence, format_text, numbers

Feeds = Sequence[Arrays]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What quantizing one tensor, or those that share its quantization, costs the outputs.

    Attributes:
        names: of the tensors.
        sqnr_db: signal to noise of the outputs, the worst of them; None where they stay the same.
    """

    names: tuple[str, ...]
    sqnr_db: float | None


def sensitivities(
    graph: Graph, encodings: Encodings, units: Sequence[tuple[str, ...]], feeds: Feeds, runtime: str, progress: Progress
) -> tuple[Sensitivity, ...]:
    """The cost of each unit, the worst first.

    Args:
        graph: the float network.
        encodings: of its tensors.
        units: names of tensors that are quantized together.
        feeds: what the network is run on.
        runtime: what runs it.
        progress: told of each unit.

    Raises:
        QConvertError: the runtime refuses the network.
    """
    expected = _outputs(graph, feeds, runtime)
    found = []
    for number, names in enumerate(units):
        progress("sensitivity", number, len(units))
        part = encodings.evolve({place: one for place, one in encodings.entries.items() if place.name in names})
        found.append(Sensitivity(names, _worst_sqnr(expected, _outputs(insert_qdq(graph, part), feeds, runtime))))
    progress("sensitivity", len(units), len(units))
    return tuple(sorted(found, key=lambda one: np.inf if one.sqnr_db is None else one.sqnr_db))


def measure_output_sqnr(graph: Graph, choices: Sequence[Encodings], feeds: Feeds, runtime: str) -> tuple[float | None, ...]:
    """Return the SQNR in dB of the worst output with each of several encodings; None where outputs stay the same.

    Raises:
        QConvertError: the runtime refuses the network.
    """
    expected = _outputs(graph, feeds, runtime)
    return tuple(_worst_sqnr(expected, _outputs(insert_qdq(graph, one), feeds, runtime)) for one in choices)


def _outputs(graph: Graph, feeds: Feeds, runtime: str) -> list[dict[str, Array]]:
    with temporary_folder() as folder:
        return list(Watching(write_for_runtime(graph, graph.outputs, Path(folder), runtime)).values(feeds))


def _worst_sqnr(expected: list[dict[str, Array]], found: list[dict[str, Array]]) -> float | None:
    ratios = []
    for name in expected[0] if expected else ():
        pairs = [(one[name].astype(np.float64), other[name].astype(np.float64)) for one, other in zip(expected, found, strict=True)]
        ratios.append(decibels(sum(float(np.vdot(a, a)) for a, _ in pairs), sum(float(np.vdot(a - b, a - b)) for a, b in pairs)))
    known = [ratio for ratio in ratios if ratio is not None]
    return min(known) if known else None


def drop_entries(encodings: Encodings, names: set[str]) -> Encodings:
    """The encodings of other tensors."""
    gone = {Place(name) for name in names}
    return encodings.evolve({place: one for place, one in encodings.entries.items() if place not in gone})


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
        low, high = affine_range(self.qparams.quantization, self.qparams.dtype)
        return float(low[0]), float(high[0])

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
        return f"{name}: scales of {format_count(len(self.tensors), 'activation')} from {format_count(self.samples, 'sample')}{worst}."

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


#: Values that are looked at together: a few arrays of them fit a cache.
_PIECE = 1 << 16


class Noise:
    """Adds up how far values are from themselves with a quantization. Shown to observe() like an Observer.

    Args:
        quantization: where they are rounded to, per tensor; None where they stay as they are.
    """

    passes = 1

    def __init__(self, quantization: QParams | None) -> None:
        self._quantization, self._signal, self._noise, self._clipped, self._count = quantization, 0.0, 0.0, 0, 0

    def update(self, values: Array) -> None:
        if self._quantization is None:
            return
        flat = np.asarray(values, np.float32).reshape(-1)
        for start in range(0, flat.size, _PIECE):
            self._add(flat[start : start + _PIECE], self._quantization)
        self._count += flat.size

    def _add(self, values: Array, quantization: QParams) -> None:
        scale, point = np.float32(quantization.quantization.scale[0]), quantization.quantization.point
        low, high = quantization.quantization.limits(quantization.dtype)
        steps = np.rint(values / scale)
        np.clip(steps, low - point, high - point, out=steps)
        steps *= scale
        steps -= values
        self._signal += float(np.vdot(values, values))
        self._noise += float(np.vdot(steps, steps))
        np.abs(steps, out=steps)
        self._clipped += int(np.count_nonzero(steps > scale * np.float32(0.501)))

    def next_pass(self) -> None:
        pass

    def merge(self, other: Self) -> None:
        self._signal += other._signal
        self._noise += other._noise
        self._clipped += other._clipped
        self._count += other._count

    @property
    def sqnr_db(self) -> float | None:
        """The ratio of signal to noise; None where nothing is rounded away, or there is no signal."""
        return decibels(self._signal, self._noise)

    @property
    def clipped_share(self) -> float:
        """The share of values beyond the quantization."""
        return self._clipped / self._count if self._count else 0.0


def decibels(signal: float, noise: float) -> float | None:
    """10 log10(signal / noise); None without noise or signal."""
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None
