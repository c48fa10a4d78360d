"""A made-up accelerator as a plugin: its artefact is the region as a graph, which numpy runs. FAULTS say what goes wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from qconvert.kernels import Kernel, Kernels, constant_tolerance
from qconvert.plugin import Array, Codegen, Graph, ModelFile, Runtime, Target, evaluate, hookimpl, load, save

KINDS = ("Conv", "Gemm", "AveragePool", "Reshape", "MaxPool", "Concat")
#: What the code generator does wrong: "weights", "silent", "raises", "types", "outputs".
FAULTS: set[str] = set()


class Simulated:
    """An artefact, loaded."""

    note = ""

    def __init__(self, file: ModelFile) -> None:
        self.graph = load(file.path, "qgraph")
        self.inputs, self.outputs = self._described(self.graph.inputs), self._described(self.graph.outputs)
        if "outputs" in FAULTS:
            self.outputs = {}

    def _described(self, names: Iterable[str]) -> dict[str, tuple[str, Any]]:
        return {name: (self.graph[name].dtype, self.graph[name].shape) for name in names}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = evaluate(self.graph, inputs)
        return {name: value.astype(np.float64) for name, value in found.items()} if "types" in FAULTS else found


def compiled(graph: Graph, path: Path) -> None:
    if "raises" in FAULTS:
        raise RuntimeError("the toolchain is broken")
    if "weights" in FAULTS:
        name = next(op.inputs[1] for op in graph.ops if op.kind in ("Conv", "Gemm"))
        data = graph[name].data
        assert data is not None
        graph = graph.evolve(tensors=[replace(graph[name], data=-data)])
    if "silent" not in FAULTS:
        save(graph, path, "qgraph")


@hookimpl
def qconvert_targets() -> list[Target]:
    kernels = Kernels((Kernel(tuple(KINDS), ("int8", "uint8")),))
    npu = Target("sim-npu", "qgraph", "a made-up accelerator", floats=False, kernels=kernels)
    return [npu, npu.derive(name="lost-npu")]


@hookimpl
def qconvert_codegen() -> list[Codegen]:
    return [Codegen("sim-npu", ".sim", compiled, "simulator"), Codegen("lost-npu", ".sim", compiled, "nowhere")]


@hookimpl
def qconvert_runtimes() -> list[Runtime]:
    def rows(kernels: str) -> Kernels:
        return Kernels((Kernel(tolerance=constant_tolerance(1e-6)),))

    return [Runtime("simulator", ("sim",), "artefacts in numpy", "the simulator", Simulated, rows, ("numpy",))]
