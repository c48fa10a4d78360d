"""What calibration finds: the grid of each tensor, with what was seen of it, and what quantizing it costs."""

from __future__ import annotations

from dataclasses import dataclass

from qconvert.calibration.observer import Histogram
from qconvert.calibration.sensitivity import Sensitivity
from qconvert.encodings import Encodings, Grid
from qconvert.graph import Graph

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


@dataclass(frozen=True, slots=True)
class Calibration:
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
