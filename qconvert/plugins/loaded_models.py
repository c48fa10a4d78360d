"""A model file in its runtime, as plugins give it: loaded, cut into pieces, its inner tensors, its layers, an engine built of it, and how
long it runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from qconvert.graph import Array, Graph
    from qconvert.rewriting.parts import Cut


@dataclass(frozen=True, slots=True)
class Timing:
    """How long runs of a model took.

    Attributes:
        wall: seconds of each run.
        processor: seconds in which processors worked on each, those of all threads together.
        memory: bytes that the model's process held at most, beyond what it held before it loaded the model; 0 if that is not known.
    """

    wall: tuple[float, ...]
    processor: tuple[float, ...]
    memory: int = 0

    @classmethod
    def of(cls, run: Callable[[], object], times: int) -> Timing:
        """Call a function so many times in this process."""
        wall, processor = [], []
        for _ in range(times):
            began = time.perf_counter(), time.process_time()
            run()
            wall.append(time.perf_counter() - began[0])
            processor.append(time.process_time() - began[1])
        return cls(tuple(wall), tuple(processor))


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file as a runtime gets it.

    Attributes:
        path: the file.
        kernels: those of the runtime's that run it.
        options: what the reader of its format takes, each with a value, for a runtime that reads the file as qconvert does:
            `load(file.path, **file.options)` is the graph that the check compares.
        threads: how many the kernels may use; 0 for as many as the runtime likes.
        bounds: for a runtime that builds for certain sizes, input -> the smallest, the optimal and the largest sizes; of inputs that are
            not named it takes what the model demands.
    """

    path: Path
    kernels: str
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    bounds: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)


class LoadedModel(Protocol):
    """A model loaded in its runtime.

    Attributes:
        inputs: name -> (dtype, shape), in order; a size known only at run time is no number.
        outputs: likewise.
        note: what a user should know of how it runs; "" if there is nothing.

    It may have a text `unjudged` besides: why its outputs say nothing of the runtime, so that no verdict can rest on them; a text `form`,
    what of the file runs and by which of its kernels; and `rebuilt`, whether not the file runs but what was read of it. One of several
    parts has `parts`: tensor -> which of them computes it, in words, for a check that finds it wrong.

    One that runs in a process of its own may have a function `time_runs(inputs, times)`, how long its runs take there (Timing). Another
    may have `bind(inputs)`, a function that runs it on these without copies of inputs and outputs, for benchmarks.

    A model with states keeps them from one run to the next; a function `reset()` makes the next run the first of a sequence. Inputs and
    outputs that stand for states (graph/carried_states.py) are none of its own.
    """

    inputs: dict[str, tuple[str, tuple[Any, ...]]]
    outputs: dict[str, tuple[str, tuple[Any, ...]]]
    note: str

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs are stored values by name; returns stored outputs by name."""
        ...


@dataclass(frozen=True, slots=True)
class Pieces:
    """A model cut at some of its tensors, so that what stands between two cuts runs by itself.

    Attributes:
        fed: names of the tensors that the pieces take.
        computed: names of those that they compute.
        dtypes: for each name, the type in which the pieces store the tensor.
        shapes: for each name the sizes (None for one known only at run time), or None.
        run: stored values of what is fed, by name -> what is computed, by name.
    """

    fed: tuple[str, ...]
    computed: frozenset[str]
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int | None, ...] | None]
    run: Callable[[Mapping[str, Array]], dict[str, Array]]

    @classmethod
    def of_cut(cls, graph: Graph, part: Cut, run: Callable[[Sequence[Array]], Iterable[Array]]) -> Pieces:
        """The pieces of a graph.

        Args:
            graph: the whole.
            part: what of it is run.
            run: values of the part's inputs in order -> those of its outputs.
        """
        fed, kept = part.graph.inputs, {*part.graph.inputs, *part.computed}
        shapes = {name: graph[name].shape for name in kept}
        return cls(
            fed,
            frozenset(part.computed),
            {name: graph[name].dtype for name in kept},
            {name: None if shape is None else tuple(s if isinstance(s, int) else None for s in shape) for name, shape in shapes.items()},
            lambda values: dict(zip(part.computed, run([values[name] for name in fed]), strict=True)),
        )


class Inside(Protocol):
    """The untouched file of a model in its runtime, which gives out inner tensors.

    Attributes:
        names: of the tensors that it gives, by their names in the canonical graph.
        cuts: whether the runtime cuts the file itself; else the canonical graph is cut and written.
    """

    names: frozenset[str]
    cuts: bool

    def values(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The tensors in a run; `feed` has the stored inputs in the model's order."""
        ...

    def pieces(self, names: frozenset[str], wanted: frozenset[str]) -> Pieces:
        """The file cut at the tensors called `names`, to compute those `wanted` among them; only where `cuts`."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator as a runtime runs it.

    Attributes:
        type: the runtime's name of the operator.
        outputs: names of what it computes, in the file.
        integer: whether its arithmetic is on integers; None if it only converts between real and stored values.
        by: what runs it, where the runtime has several, such as "XNNPACK".
        operator: its type in the file, where the runtime calls it otherwise.
        within: the layer of an engine that it is a part of, by the runtime's name.
    """

    type: str
    outputs: tuple[str, ...]
    integer: bool | None
    by: str = ""
    operator: str = ""
    within: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """What a runtime builds of a file for a device, without running it.

    Attributes:
        layers: the operators as it would run them, each under the layer of the engine that computes it.
        notes: the device it was built for, the builder, and further notes for the user.
    """

    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
