"""What is read, and how: the seeds of each reader, how they are altered, and what reads the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.altering import Rng, altered_bytes
from fuzz.data_files import altered_data, data_seeds, read_data
from fuzz.mnn_files import altered_mnn, mnn_seeds, read_scales
from fuzz.model_files import altered_onnx, altered_qgraph, altered_tflite, onnx_seeds, qgraph_seeds, tflite_seeds
from fuzz.random_operators import random_file
from fuzz.scale_files import altered_scales, apply_scales, scale_seeds
from fuzz.sets import (
    altered_set,
    external_seeds,
    partition_seeds,
    plugin_seeds,
    read_plugin,
    read_state,
    state_seeds,
    unpacked,
)
from fuzz.torch_files import altered_archive, random_call, torch_seeds


@dataclass(frozen=True)
class Reader:
    """One of the things that read files.

    Attributes:
        made: small sound files by name.
        alter: the content of a file and a generator -> the content with some changes; it may fail where a change fits no file.
        read: reads a file at a path.
        suffix: of all its files; "" where a seed's name ends in it.
        by_bytes: how many of 10 alterations change bytes alone.
        random: a generator -> a file of one operator with random inputs and attributes; None if there is none.
        is_set: whether a file stands for several (fuzz.sets).
        is_converted: whether what is read can be converted.
    """

    made: Callable[[], Mapping[str, bytes]]
    alter: Callable[[bytes, Rng], bytes]
    read: Callable[[Path], Any]
    suffix: str = ""
    by_bytes: int = 3
    random: Callable[[Rng], bytes] | None = None
    is_set: bool = False
    is_converted: bool = False

    def files(self, seed_name: str, data: bytes) -> dict[str, bytes]:
        """What is written into an empty folder for a file: contents by name, first the one that is read."""
        return unpacked(data) if self.is_set else {f"m{self.suffix or Path(seed_name).suffix}": data}

    @cache  # noqa: B019 the readers live as long as the program
    def seeds(self) -> Mapping[str, bytes]:
        """Small sound files by name."""
        return self.made()


def _load(path: Path) -> Any:
    from qconvert import load

    return load(path)


def _set(made: Callable[[], Mapping[str, bytes]], read: Callable[[Path], Any]) -> Reader:
    return Reader(made, altered_set, read, by_bytes=0, is_set=True)


READERS: Mapping[str, Reader] = {
    "tflite": Reader(tflite_seeds, altered_tflite, _load, ".tflite", random=partial(random_file, "tflite"), is_converted=True),
    "onnx": Reader(onnx_seeds, altered_onnx, _load, ".onnx", random=partial(random_file, "onnx"), is_converted=True),
    "qgraph": Reader(qgraph_seeds, altered_qgraph, _load, ".qgraph", random=partial(random_file, "qgraph"), is_converted=True),
    "torch": Reader(torch_seeds, altered_archive, _load, ".pt", by_bytes=1, random=random_call, is_converted=True),
    "state": _set(state_seeds, read_state),
    "external": _set(external_seeds, _load),
    "partition": _set(partition_seeds, _load),
    "mnn": Reader(mnn_seeds, altered_mnn, read_scales),
    "scales": Reader(scale_seeds, altered_scales, apply_scales),
    "data": Reader(data_seeds, altered_data, read_data),
    "plugins": _set(plugin_seeds, read_plugin),
}


def mutated(reader: str, seed: int, index: int) -> tuple[str, bytes]:
    """Which seed was taken, and the altered file: always the same for one (reader, seed, index)."""
    item = READERS[reader]
    rng = np.random.default_rng([seed, list(READERS).index(reader), index])
    if item.random is not None and rng.random() < 0.3:
        return "a random operator", item.random(rng)
    names = list(item.seeds())
    name = names[rng.integers(len(names))]
    data = item.seeds()[name]
    for _ in range(20):
        alter = altered_bytes if rng.integers(10) < item.by_bytes else item.alter
        try:
            found = alter(data, rng)
        except (OverflowError, TypeError, ValueError, AttributeError, MemoryError, LookupError):  # the value does not fit a file
            continue
        except Exception as error:
            if type(error).__module__ not in ("struct", "google.protobuf.message"):
                raise
            continue
        if found != data:
            return name, found
    return name, data[:-1]
