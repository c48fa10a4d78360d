"""Nine faults planted in a sound model: each is named at the right operator, and nothing is named in the sound model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from random_graphs import random_graph

from qconvert import check, convert, load

pytestmark = [pytest.mark.onnxruntime, pytest.mark.litert]

SOURCE = Path(__file__).parent.parent.parent / "fixtures" / "tiny_vww_mobilenet_int8.tflite"


class Planter:
    """The sound ONNX model, and the pieces of one of its convolutions.

    Attributes:
        operator: the source operator that the convolution came from, such as "CONV_2D #12".
    """

    def __init__(self, path: Path, operator: str) -> None:
        self.model = onnx.load(path)
        self.values = {item.name: item for item in self.model.graph.initializer}
        self.operator = operator
        nodes = {node.output[0]: node for node in self.model.graph.node}
        self.conv = next(n for n in self.model.graph.node if n.op_type == "Conv" and n.doc_string == operator)
        self.weights, self.bias = (nodes[self.conv.input[i]] for i in (1, 2))
        self.quantize = next(n for n in self.model.graph.node if self.conv.output[0] in n.input)

    def change(self, name: str, function: Callable[[Any], Any]) -> None:
        old = numpy_helper.to_array(self.values[name])
        new = np.asarray(function(old.copy()))
        assert not np.array_equal(old, new)
        self.values[name].CopyFrom(numpy_helper.from_array(new.astype(old.dtype).reshape(old.shape), name))


def output_zero_point(p: Planter) -> None:
    p.change(p.quantize.input[2], lambda z: z + 1)


def rolled_channel_scales(p: Planter) -> None:
    p.change(p.weights.input[1], lambda s: np.roll(s, 1))


def one_scale_for_all_channels(p: Planter) -> None:
    p.change(p.weights.input[1], lambda s: np.full_like(s, s.mean()))


def wrong_bias_scale(p: Planter) -> None:
    """The integers of a bias that was quantized with the mean scale; onnxruntime does not look at the scale itself."""
    scale = numpy_helper.to_array(p.values[p.bias.input[1]])
    p.change(p.bias.input[0], lambda b: np.round(b * scale / scale.mean()))


def padding_on_the_other_side(p: Planter) -> None:
    pads = next(a for a in p.conv.attribute if a.name == "pads")
    old = list(pads.ints)
    pads.ints[:] = [*old[2:], *old[:2]]
    assert list(pads.ints) != old


def flipped_kernel(p: Planter) -> None:
    p.change(p.weights.input[0], lambda w: w[:, :, ::-1, ::-1])


def output_scale(p: Planter) -> None:
    p.change(p.quantize.input[1], lambda s: s * np.float32(1.01))


def weight_scales(p: Planter) -> None:
    p.change(p.weights.input[1], lambda s: s * np.float32(1.003))


def one_weight_bit(p: Planter) -> None:
    def flip(w: Any) -> Any:
        w.reshape(-1)[w.size // 2] ^= 0x20
        return w

    p.change(p.weights.input[0], flip)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("sound") / "model.onnx"
    convert(SOURCE, result)
    return result


def stride_2_depthwise() -> str:
    """A depthwise convolution whose padding is not the same on both sides."""
    graph = load(SOURCE)
    return next(op.source for op in graph.ops if op.kind == "Conv" and op["group"] > 1 and tuple(op["pads"][:2]) != tuple(op["pads"][2:]))


@pytest.mark.cross_section
def test_nothing_is_named_in_the_sound_model(sound: Path) -> None:
    report = check(SOURCE, sound, samples=2, per_op=True)
    assert report.passed
    assert all(op.unexplained == 0 and op.equal == 1 for op in report.operators)


@pytest.mark.parametrize("options", [{"io": "float"}, {"io_layout": "nchw"}, {"target": "ort-arm"}], ids=str)
def test_every_form_of_the_model_can_be_checked(options: dict[str, Any], tmp_path: Path) -> None:
    convert(SOURCE, tmp_path / "model.onnx", **options)
    report = check(SOURCE, tmp_path / "model.onnx", samples=1, per_op=True)
    assert report.passed
    assert len(report.operators) == len(load(SOURCE).ops)
    assert all(op.equal == 1 for op in report.operators)


@pytest.mark.parametrize("kernels", ["litert:default", "litert:reference"])
@pytest.mark.parametrize(
    ("fault", "operator"),
    [
        (output_zero_point, "CONV_2D #12"),
        (rolled_channel_scales, "CONV_2D #16"),
        (one_scale_for_all_channels, "CONV_2D #10"),
        (wrong_bias_scale, "CONV_2D #18"),
        (padding_on_the_other_side, ""),
        (flipped_kernel, "DEPTHWISE_CONV_2D #5"),
        (output_scale, "CONV_2D #8"),
        (weight_scales, "CONV_2D #14"),
        (one_weight_bit, "CONV_2D #6"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_fault_is_named_at_its_operator(
    fault: Callable[[Planter], None], operator: str, kernels: str, sound: Path, tmp_path: Path
) -> None:
    planter = Planter(sound, operator or stride_2_depthwise())
    fault(planter)
    onnx.save(planter.model, tmp_path / "faulty.onnx")
    report = check(SOURCE, tmp_path / "faulty.onnx", samples=1, per_op=True, kernels=kernels)
    named = [op.operator for op in report.operators if op.verdict == "unexplained"]
    assert not report.passed
    assert named[0] == planter.operator
    # A wrong scale or zero point of a tensor is also wrong for the operator that reads it; no other is named.
    assert len(named) <= 2


@pytest.mark.parametrize("mask", [0x01, 0x20])
def test_a_weight_that_these_inputs_do_not_bring_out(mask: int, tmp_path: Path) -> None:
    """In the last convolution of this ResNet one wrong weight changes no output of the run; comparing the constants names it."""
    source = SOURCE.parent / "tiny_resnet_cifar10_int8.tflite"
    convert(source, tmp_path / "model.onnx")
    planter = Planter(tmp_path / "model.onnx", "CONV_2D #9")

    def flip(w: Any) -> Any:
        w.reshape(-1)[w.size // 2] ^= mask
        return w

    planter.change(planter.weights.input[0], flip)
    onnx.save(planter.model, tmp_path / "model.onnx")
    report = check(source, tmp_path / "model.onnx", samples=1, per_op=True)
    named = [op for op in report.operators if op.verdict == "unexplained"]
    assert [op.operator for op in named] == ["CONV_2D #9"]
    assert "1 of 36864 integers of" in named[0].reason


@pytest.mark.parametrize("index", [1, 2], ids=["weights", "bias"])
def test_a_scale_that_is_off_by_a_trifle(index: int, sound: Path, tmp_path: Path) -> None:
    """onnxruntime does not look at the scale of a bias; other runtimes do."""
    planter = Planter(sound, "CONV_2D #14")
    planter.change((planter.weights, planter.bias)[index - 1].input[1], lambda s: s * np.float32(1.00001))
    onnx.save(planter.model, tmp_path / "faulty.onnx")
    report = check(SOURCE, tmp_path / "faulty.onnx", samples=1, per_op=True)
    (named,) = [op for op in report.operators if op.verdict == "unexplained"]
    assert named.operator == "CONV_2D #14"
    assert "is off by 0.001" in named.reason


def test_values_of_another_shape_explain_nothing(tmp_path: Path) -> None:
    """An average after a rounding, of which the result turns the axes otherwise: its own values of the data have the source's shape."""
    source, result = tmp_path / "s.tflite", tmp_path / "r.onnx"
    convert(random_graph(932279), source, force=True)
    convert(source, result)
    model = onnx.load(str(result))
    (turn,) = (node.attribute[0] for node in model.graph.node if node.op_type == "Transpose" and [*node.attribute[0].ints] == [0, 2, 3, 1])
    turn.ints[:] = [1, 3, 2, 0]
    onnx.save(model, str(result))
    report = check(source, result, samples=3)
    assert report.verdict == "not equal" and any("the shape (5, 3, 4, 1) instead of (1, 4, 3, 5)" in text for text in report.problems)
