"""What each destination can do, as data, one file each."""

from __future__ import annotations

from collections.abc import Iterable

from qconvert.plugins import Target, hookimpl
from qconvert.targets import mnn, ort, tensorrt, tflite, torch


@hookimpl
def qconvert_targets() -> Iterable[Target]:
    return [*ort.TARGETS, *tensorrt.TARGETS, *tflite.TARGETS, *torch.TARGETS, *mnn.TARGETS]
