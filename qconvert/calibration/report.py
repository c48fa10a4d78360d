"""What calibration finds: the grid of each tensor, with what was seen of it, and what quantizing it costs."""

from __future__ import annotations

from dataclasses import dataclass

from qconvert.calibration.observer import Histogram
from qconvert.calibration.sensitivity import Sensitivity
from qconvert.encodings import Encodings, Grid
from qconvert.graph import Graph
from qconvert.tables import Rows, Shown, numbers, said, shown

__all__ = ["Calibration", "TensorReport"]


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What calibration found of one tensor, and of those that share its grid.

    Attributes:
        names: of the tensors.
        lowest, highest: the extremes that were seen.
        grid: what was chosen.
        origin: who chose it.
        sqnr_db: signal to noise of the values on the grid; None where nothing is rounded away.
        clipped: the share of values beyond the grid.
        histogram: of the values, where the method counts them.
    """

    names: tuple[str, ...]
    lowest: float
    highest: float
    grid: Grid
    origin: str
    sqnr_db: float | None = None
    clipped: float = 0.0
    histogram: Histogram | None = None

    @property
    def range(self) -> tuple[float, float]:
        """The real values that the smallest and the largest stored value stand for."""
        q = self.grid.quantization
        low, high = (float((limit - int(q.zero_point[0])) * float(q.scale[0])) for limit in q.limits(self.grid.dtype))
        return low, high


@dataclass(frozen=True, slots=True, repr=False)
class Calibration(Shown):
    """What calibrate() found.

    Attributes:
        graph: the float network that the encodings are of.
        encodings: of its tensors.
        tensors: activations, in the order of the graph.
        samples: how many were seen.
        sensitivity: what quantizing each tensor by itself costs the outputs, the worst first; () where that was not asked for.
        kept_float: tensors that stay float because they cost most.
        is_changed: whether the network's weights or biases are others than those of the model, which encodings do not say.
        notes: what the user should know.
    """

    graph: Graph
    encodings: Encodings
    tensors: tuple[TensorReport, ...]
    samples: int
    sensitivity: tuple[Sensitivity, ...] = ()
    kept_float: tuple[str, ...] = ()
    is_changed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """How many activations have grids, and how good the worst is."""
        known = [item.sqnr_db for item in self.tensors if item.sqnr_db is not None]
        worst = f"; the worst activation keeps {min(known):.1f} dB" if known else ""
        return f"{shown(self.graph.name) or 'The network'}: grids of {len(self.tensors)} activations from {self.samples} samples{worst}."

    def tables(self) -> tuple[Rows, ...]:
        """The grid of each activation, and what quantizing tensors by themselves costs."""
        rows = tuple(
            (shown(" = ".join(item.names)), f"{item.lowest:.6g}", f"{item.highest:.6g}", f"{item.range[0]:.6g}", f"{item.range[1]:.6g}",
             numbers(item.grid.quantization.scale), "" if item.sqnr_db is None else f"{item.sqnr_db:.1f} dB", f"{100 * item.clipped:.3g}%",
             shown(item.origin))
            for item in self.tensors
        )  # fmt: skip
        costs = tuple(
            (shown(" = ".join(one.names)), "none" if one.sqnr_db is None else f"{one.sqnr_db:.1f} dB") for one in self.sensitivity
        )
        columns = ("tensor", ">lowest seen", ">highest seen", ">grid from", ">to", ">scale", ">SQNR", ">clipped", "chosen by")
        return (
            Rows("Activations", columns, rows, note=f"{self.samples} samples.", folded=len(rows) > 60),
            Rows("What quantizing each by itself costs the outputs", ("tensor", ">SQNR of the outputs"), costs, folded=len(costs) > 60),
            Rows("Notes", ("in words",), tuple((said(text),) for text in self.notes)),
        )
