"""What passes between quantizations cost MobileNet v2, per axis in int8 and per tensor in uint8: SQNR of the logits, and top-1.

    python benchmarks/quantization_passes.py [--images FOLDER] [--samples N] [--markdown docs/measured/passes.md]

The Softmax is taken off. Inputs are crops of photographs, half of them mirrored, at 70% to 130% of their brightness, and one in five random
numbers. Model and result run in onnxruntime, as the target ort-x86 has them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from page import Section, publish
from uint8_weights import crops

from qconvert import Graph, PassCost, load, pass_costs
from qconvert.graph import Array

FIXTURES = Path(__file__).parent.parent / "fixtures"
MODELS = {"int8, per axis": "coral_tf2_mobilenet_v2_224_int8.tflite", "uint8, per tensor": "coral_mobilenet_v2_224_uint8.tflite"}
PASSES = (
    "symmetric_activations", "symmetric_weights", "affine_activations", "google_scales", "power_of_two", "narrow_range", "reduced_range",
    "per_axis_to_per_tensor", "change_bits",
)  # fmt: skip
HEADER = ["model", "pass", "activations", "weights", "worst tensor", "logits", "same top-1"]


def without_softmax(graph: Graph) -> Graph:
    """The graph that ends at what the Softmax reads."""
    last = next(op for op in reversed(graph.ops) if op.kind == "Softmax")
    return graph.evolve(ops=graph.ops[: graph.ops.index(last)], outputs=(last.inputs[0],), signatures=())


def inputs_of(graph: Graph, images: Path, count: int) -> list[dict[str, Array]]:
    """Stored inputs: photographs, and random numbers for one in five."""
    (name,) = graph.inputs
    tensor, rng = graph[name], np.random.default_rng(1)
    shape = tuple(size if isinstance(size, int) else 1 for size in tensor.shape or ())
    pixels = crops(images, shape[1], count - count // 5) + [rng.integers(0, 256, shape).astype(np.uint8) for _ in range(count // 5)]
    shift = 128 if tensor.dtype == "int8" else 0
    return [{name: (values.astype(np.int16) - shift).astype(tensor.dtype)} for values in pixels]


def line(model: str, cost: PassCost, count: int) -> list[str]:
    called = " ".join((cost.name, *(f"{name}={value}" for name, value in cost.options.items())))
    if cost.refused:
        return [model, called, *[""] * 4, cost.refused]
    worst = "" if cost.worst is None or cost.worst.sqnr_db is None else f"{cost.worst.sqnr_db:.1f} dB"
    sqnr = "equal" if cost.sqnr_db is None else f"{cost.sqnr_db:.1f} dB"
    same = "" if cost.same_top1 is None else f"{round(cost.same_top1 * count)} of {count}"
    return [model, called, str(cost.activations), str(cost.weights), worst, sqnr, same]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=Path, default=FIXTURES / "images", help="a folder with .bmp files")
    parser.add_argument("--samples", type=int, default=500, help="inputs")
    parser.add_argument("--markdown", type=Path, help="the page to update")
    options = parser.parse_args()
    lines = []
    for model, name in MODELS.items():
        graph = without_softmax(load(FIXTURES / name))
        feeds = inputs_of(graph, options.images, options.samples)
        costs = pass_costs(graph, names=PASSES, feeds=feeds, progress=lambda what, done, total: print(what, done, total, flush=True))
        lines += [line(model, cost, len(feeds)) for cost in costs]
    note = (
        f"{options.samples} inputs, crops of photographs and, one in five, random numbers, in onnxruntime as ort-x86 has the models, "
        "without the Softmax. Activations: tensors with other scales; weights: those with other integers; worst tensor: the least SQNR of "
        "one, of weights over their values, of activations over all codes."
    )
    part = Section("What passes between quantizations cost MobileNet v2", HEADER, lines, note)
    publish(part, options.markdown, "python benchmarks/quantization_passes.py", 200)


if __name__ == "__main__":
    main()
