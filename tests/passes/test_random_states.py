"""Passes and targets on random graphs with states: each run of three gives what it gave before.

A value of a random graph reaches an operator one run later than before: it is written to a state, which that operator reads.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_graphs import random_graph

import qconvert
from qconvert.conversion import normalize, run_passes
from qconvert.conversion.verifying import Verifier
from qconvert.errors import UnsupportedError
from qconvert.graph import Graph, Op, Tensor, integer_range
from qconvert.plugins import passes, target_named
from qconvert.rules.validation import validate

TARGETS = ("ort-x86", "ort-arm", "generic", "tflite", "tflite-uint8", "tflite-micro")


def is_kept(tensor: Tensor) -> bool:
    quantization = tensor.quantization
    return (
        not tensor.is_constant
        and tensor.static_shape is not None
        and (quantization is None or quantization.is_per_tensor)
        and tensor.dtype != "bool"
    )


def delayed(seed: int) -> Graph:
    """A random graph, in which an operator or two get a value of the run before."""
    graph, chosen = random_graph(seed), random.Random(seed)
    reads = [
        (position, index) for position, op in enumerate(graph.ops) for index, name in enumerate(op.inputs) if name and is_kept(graph[name])
    ]
    ops, tensors, states, writes = list(graph.ops), [], {}, []
    for number, (position, index) in enumerate(chosen.sample(reads, min(len(reads), chosen.choice((1, 2))))):
        own, state = graph[graph.ops[position].inputs[index]], f"state {number}"
        inputs = list(ops[position].inputs)
        inputs[index] = f"{state}/read"
        ops[position] = replace(ops[position], inputs=tuple(inputs))
        tensors.append(replace(own, name=f"{state}/read"))
        states[state] = replace(own, name=state, data=first_value(own, seed))
        writes.append(Op("WriteState", (own.name,), (), {"state": state}))
    first = [Op("ReadState", (), (f"{name}/read",), {"state": name}) for name in states]
    return graph.evolve(tensors=tensors, ops=[*first, *ops, *writes], states=states)


def first_value(tensor: Tensor, seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    rng, shape = np.random.default_rng(seed), tensor.static_shape or ()
    if "float" in tensor.dtype:
        return rng.normal(size=shape).astype(tensor.dtype)
    low, high = integer_range(tensor.dtype)
    return rng.integers(max(low, -100), min(high, 100), shape).astype(tensor.dtype)


@pytest.mark.parametrize("seed", range(12))
def test_targets_keep_what_states_do(seed: int) -> None:
    graph = delayed(seed)
    validate(graph)
    for name in TARGETS:
        try:
            normalize(graph, target_named(name), observers=[Verifier(graph, samples=3)])  # raises where an output changes
        except UnsupportedError:
            continue


@pytest.mark.parametrize("name", sorted(passes()))
def test_passes_keep_what_states_do(name: str) -> None:
    """Those that are not exact make valid graphs; random quantizations are not all fit for the bounds that they declare."""
    for seed in range(100, 108):
        graph = delayed(seed)
        try:
            run_passes(graph, (name,), target_named("tflite"), observers=[Verifier(graph, samples=3)] if passes()[name].exact else [])
        except UnsupportedError:
            continue


@pytest.mark.onnxruntime
@pytest.mark.litert
@pytest.mark.parametrize("seed", range(20, 26))
def test_states_survive_both_formats(seed: int, tmp_path: Path) -> None:
    graph = delayed(seed)
    qconvert.save(graph, tmp_path / "g.qgraph")
    try:
        qconvert.convert(tmp_path / "g.qgraph", tmp_path / "a.tflite")
        qconvert.convert(tmp_path / "a.tflite", tmp_path / "b.onnx")
        qconvert.convert(tmp_path / "b.onnx", tmp_path / "c.tflite")
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert all(qconvert.load(tmp_path / name).states.keys() == graph.states.keys() for name in ("a.tflite", "b.onnx", "c.tflite"))
    report = qconvert.check(tmp_path / "a.tflite", tmp_path / "b.onnx", samples=1)
    assert report.verdict != "not equal", report.problems
