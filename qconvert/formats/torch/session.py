"""The state that all calls of one PyTorch model share while it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from qconvert.formats.reading.draft import Draft
from qconvert.formats.torch.constants import Constants
from qconvert.graph.metadata import OBSERVED_SCALES, SOURCE_FORMAT, SOURCE_PRODUCER, TRAINED_SCALES

__all__ = ["Session"]


@dataclass(frozen=True, slots=True)
class Session:
    """The state that all calls of one model share.

    Attributes:
        draft: the graph while it grows.
        constants: those of the file.
        scalar_types: numbers of storage types -> their names, in this container.
        trained: names of fake quantizations, whose scales are those that the file stores.
        observed: those of them whose observers are still on.
        made: how many bytes of constants calls made so far.
    """

    draft: Draft
    constants: Constants
    scalar_types: Mapping[int, str]
    trained: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    made: list[int] = field(default_factory=lambda: [0])

    def __post_init__(self) -> None:
        self.draft.known.computes = True

    def metadata(self, producer: str) -> dict[str, str]:
        """What the graph says of its source: the format, what made it, and what was read otherwise than PyTorch would convert it."""
        found = {SOURCE_FORMAT: "torch", SOURCE_PRODUCER: producer}
        lists = {TRAINED_SCALES: self.trained, OBSERVED_SCALES: self.observed}
        return found | {key: json.dumps(names) for key, names in lists.items() if names}
