"""Where kinds of operators are named: in their objects, in formats, in rows of kernels, and elsewhere only in what is about them.

What is true of an operator in every format and runtime is a field of its object (operators/), which everything else asks. A file that is
not listed here names no kind; whoever adds one says why, or finds that a field is missing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from qconvert.operators import KINDS

_HOME = Path(__file__).parent.parent / "qconvert"
_ROOMS = "calibration checking conversion data evaluate partitioning passes reports rewriting rules".split()
#: The kinds that the graph itself is about: between real and stored values, states, functions, what is not known. Every room may name them.
_STRUCTURE = {name for name, kind in KINDS.items() if kind.rule in ("convert", "relabel", "state", "control", "opaque")} | {"Identity"}
#: Kinds whose names are words of Python and of English.
_WORDS = {"Real", "If"}

#: File -> what in it is about kinds of operators.
_ABOUT = {
    "calibration/files.py": "a word of a sentence",
    "checking/attributes.py": "a Mul that took over a factor, and Softmax's beta that another scale took over",
    "checking/expected_values.py": "sums and LayerNormalizations have error bounds of their own; an LSTM rounds hidden values at each step",
    "checking/file_values.py": "DynamicQuantizeLinear rounds, unlike other plain operators",
    "checking/operator_finding.py": "free choices of boxes",
    "checking/comparison_forms.py": ("writes a Clip as the Max and the Min that TFLite has, whose Gather knows no index below 0"),
    "checking/recurrent.py": "an LSTM in float against one on integers",
    "conversion/adapting/batch_propagation.py": (
        "a Reshape and a Slice state sizes, a Transpose brings the samples to the front; blocks of an image stand along the batch"
    ),
    "conversion/adapting/samples.py": "a Tile repeats constants",
    "conversion/pieces.py": "a Reshape at the border of a piece",
    "conversion/states/inserted_operators.py": (
        "writes the operators that round data when they run; puts a Gather or a Mul before linear layers, through the Reshape of "
        "their rows; writes the operators of fake quantization"
    ),
    "conversion/states/joined_layers.py": "divides a linear layer, and joins the results",
    "conversion/states/network.py": "the two forms of a linear layer; how PyTorch calls the constants of its modules",
    "conversion/states/places.py": "a Relu shares the quantization, and the observer, of the operator before it",
    "conversion/states/tensors.py": "PyTorch's modules of normalization and transposed convolution; the operators that decode a weight",
    "data/input_limits.py": "a Reshape states sizes",
    "data/preparation.py": "a word of an option",
    "evaluate/curves.py": "operators that act on each element, with a table or a constant",
    "evaluate/known_values.py": "UnsortedSegment sums sizes by a list of places",
    "partitioning/manifest.py": "a word of the document",
    "passes/__init__.py": "descriptions of the passes",
    "passes/activations.py": "activations that join the operator before, and those that a target's kernels do not take in",
    "passes/batch_norms.py": "batch normalization after a layer, and of training, decomposed",
    "passes/convolutions.py": "windows of one dimension; transposed convolutions as others; global pooling is a mean",
    "passes/gemms.py": "MatMul with constant weights is Gemm, and Gemm a convolution",
    "passes/integer_ranges.py": "limits that leave a part of a quantization",
    "passes/pads_and_dilations.py": "padding before windows and SpaceToBatch; TensorFlow's form of dilated convolutions",
    "passes/pixels.py": "a Conv of blocks of pixels between Reshapes and Transposes",
    "passes/wide_weights.py": "writes and reads Slice, Split and Concat of channels around a convolution",
    "passes/decompose_weights.py": "a Cast next to scales decomposed is a Dequantize; writes scales decomposed",
    "passes/absorb_quantization.py": "limits that a quantization has already; a Cast next to scales decomposed is a Dequantize",
    "passes/apply_encodings.py": "writes a Clip to the range of a quantization",
    "passes/assign_layout.py": "writes Transposes, and moves Reshapes",
    "passes/dynamic_range.py": "operators with integer weights, and what leads to them; onnxruntime's form of dynamic range",
    "passes/encoding_entries.py": "weights that have blocks; what runtimes fuse into the layer before; batch normalization that is folded",
    "passes/requantize_to_fixed_point.py": (
        "sums that TFLite's kernels of 16 bits round; writes fixed-point arithmetic with operators on integers"
    ),
    "passes/fuse_recurrence.py": "loops that are recurrences; the operators that cells consist of",
    "passes/weight_storage.py": "products whose sums of 16 bits overflow",
    "passes/isolate_float.py": "writes a Clip to the range of a quantization; a Clip or Min after Softmax",
    "passes/operand_scales.py": "sums and averages whose kernels demand one scale; products of data with a real constant",
    "passes/shapes.py": "one Reshape for several",
    "passes/requantizations.py": "the arithmetic of quantization, in float",
    "passes/recurrences.py": "an LSTM on integers as one in float; IntegerLSTM and loops, step by step",
    "passes/loop_recognition.py": "the operators that loops over steps consist of",
    "passes/restore_zero_points.py": "operators that the conversion to symmetric quantizations changed",
    "passes/shifted_operators.py": (
        "averages that count padding; products, whose bias takes up zero points; which operators give the same integers whatever "
        "the zero point is; products of two activations"
    ),
    "passes/shifted_graph.py": "writes scales decomposed; operators between that write or read zero points",
    "passes/sums_in_float.py": "products of integers as those of reals",
    "passes/match_rounding.py": "operators whose kernels round in a way of their own in PyTorch",
    "passes/missing_operators.py": "writes a table and what reads it",
    "passes/number_types.py": "writes Casts",
    "reports/pages.py": "a word of a sentence",
    "rewriting/loops.py": "loops of one format as those of another",
    "rewriting/lowering.py": "limits for a fused activation",
    "rewriting/normal_forms.py": "the operators that polynomials and functions are made of",
    "rewriting/rewriter.py": "writes Clips of numbers for passes",
    "rewriting/torch_forms.py": "writes PyTorch's rounding",
    "rewriting/control_flow.py": "counters of loops",
    "rules/validation/quantization.py": "operators with rules of their own about scales",
}


def _named(path: Path) -> Iterator[str]:
    """The kinds that a file's strings name, docstrings apart."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    docs = {id(scope.body[0].value) for scope in scopes if scope.body and isinstance(scope.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield from (word for word in re.split(r"[\s|,]+", node.value) if word in KINDS and word not in _STRUCTURE | _WORDS)


def test_kinds_are_named_only_where_something_is_about_them() -> None:
    paths = [path for room in _ROOMS for path in sorted((_HOME / room).rglob("*.py"))]
    found = {path.relative_to(_HOME).as_posix(): sorted({*_named(path)}) for path in paths}
    found = {name: kinds for name, kinds in found.items() if kinds}
    new = {name: kinds for name, kinds in found.items() if name not in _ABOUT}
    assert not new, f"ask the operator's object (operators/kind.py), or say here what is about these kinds: {new}"
    assert not _ABOUT.keys() - found.keys(), "these name no kind any more: take them off the list"
