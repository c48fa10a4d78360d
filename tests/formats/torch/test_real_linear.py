"""Linear layers of packed weights in float: values that PyTorch 2.13 computed (fbgemm)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qconvert.errors import InvalidModelError
from tests.torchscript_models import Instance, Quantized, archive, computed, graph_of, net, packed_linear

pytestmark = pytest.mark.formats

_X = np.array(
    [
        [2.653, -3.322, 0.544, -0.738, -0.588, -0.28],
        [-2.626, -0.302, -1.125, 4.32, 0.294, -0.458],
        [-0.366, -0.868, -1.372, -0.508, 0.627, -0.31],
        [1.245, -0.26, 0.032, 2.01, 0.709, -0.657],
    ],
    np.float32,
)
_W = np.array([[-117, 100, 41, 21, -66, -8], [-80, 69, -7, -121, -63, 52], [5, -33, -64, -105, 27, 41]], np.int8)
_B = np.array([0.25, -1.5, 0.0], np.float32)
_CHANNEL = Quantized(_W, [0.01, 0.02, 0.03], [0, 0, 0], 0)
_TENSOR = Quantized(_W, 0.015, 3)

#: The first row of what PyTorch gives, by weights and reduce_range.
_FIRST = {
    ("channel", True): [-5.665630340576172, -8.18644905090332, 4.050861835479736],
    ("channel", False): [-5.7161545753479, -8.145842552185059, 4.200402736663818],
    ("tensor", True): [-8.54491901397705, -6.436310768127441, 2.103956937789917],
    ("tensor", False): [-8.621013641357422, -6.406164169311523, 2.178419589996338],
}
_LAST = {
    ("channel", True): [-1.4510971307754517, -10.266036033630371, -6.17196798324585],
    ("channel", False): [-1.4803885221481323, -10.341344833374023, -6.154956817626953],
    ("tensor", True): [-2.442451238632202, -8.21533203125, -3.2267894744873047],
    ("tensor", False): [-2.484487533569336, -8.269912719726562, -3.2163829803466797],
}


def _layer(weights: Any) -> dict[str, Any]:
    return {"p": packed_linear(weights, _B)}


@pytest.mark.parametrize("quantizations", ["channel", "tensor"])
@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.parametrize("relu", [False, True])
def test_a_dynamic_layer_gives_pytorchs_values(tmp_path: Path, quantizations: str, reduced: bool, relu: bool) -> None:
    weights = _CHANNEL if quantizations == "channel" else _TENSOR
    name = "linear_relu_dynamic" if relu else "linear_dynamic"
    body = f"return ops.quantized.{name}(x, self.p, {reduced})"
    (result,) = computed(tmp_path / "m.pt", body, _X, attributes=_layer(weights))
    wanted = np.array([_FIRST[quantizations, reduced], _LAST[quantizations, reduced]])
    np.testing.assert_allclose(result[[0, 3]], np.maximum(wanted, 0) if relu else wanted, atol=3e-6)


@pytest.mark.parametrize("reduced", [True, False])
def test_data_of_zeros_give_the_bias(tmp_path: Path, reduced: bool) -> None:
    body = f"return ops.quantized.linear_dynamic(x, self.p, {reduced})"
    (result,) = computed(tmp_path / "m.pt", body, np.zeros((2, 6), np.float32), attributes=_layer(_CHANNEL))
    assert np.array_equal(result, [_B, _B])


@pytest.mark.parametrize("reduced", [True, False])
def test_rows_of_data_of_any_rank_share_one_range(tmp_path: Path, reduced: bool) -> None:
    body = f"return ops.quantized.linear_dynamic(x, self.p, {reduced})"
    (result,) = computed(tmp_path / "m.pt", body, _X.reshape(2, 2, 6), attributes=_layer(_CHANNEL))
    np.testing.assert_allclose(result[1, 1], _LAST["channel", reduced], atol=3e-6)


def test_the_integers_of_the_weights_stay(tmp_path: Path) -> None:
    for reduced in (True, False):
        body = f"return ops.quantized.linear_dynamic(x, self.p, {reduced})"
        graph = graph_of(archive(tmp_path / "m.pt", net(body), _layer(_CHANNEL), traced=[("float32", (4, 6))]))
        held = [tensor.data for tensor in graph.constants() if tensor.dtype == "int8" and tensor.rank == 2]
        assert any(np.array_equal(data, _W) or np.array_equal(data, _W.T) for data in held if data is not None)


def test_weights_in_float16_are_real(tmp_path: Path) -> None:
    weights = (_W * 0.01).astype(np.float16).astype(np.float32)
    held = {"p": Instance("__torch__.torch.classes.quantized.LinearPackedParamsBase", (weights, _B))}
    for call in ("linear_dynamic_fp16(x, self.p)", "linear_dynamic(x, self.p, True)"):  # the weights choose the kernel
        (result,) = computed(tmp_path / "m.pt", f"return ops.quantized.{call}", _X, attributes=held)
        np.testing.assert_allclose(result, _X @ weights.T + _B, atol=1e-5)
    with refused(InvalidModelError, "not-quantized"):
        computed(
            tmp_path / "n.pt", "return ops.quantized.linear(torch.quantize_per_tensor(x, 0.1, 3, 13), self.p, 0.1, 3)", _X, attributes=held
        )


def test_data_on_a_stated_quantization_give_real_results(tmp_path: Path) -> None:
    name = "linear_with_input_q_dq_qweight_dq_output_fp32"
    body = f"return ops.quantized.{name}(x, 0.03, 120, self.p)"
    (result,) = computed(tmp_path / "m.pt", body, _X, attributes=_layer(_TENSOR))
    stored = np.clip(np.rint(_X / 0.03) + 120, 0, 255) - 120
    np.testing.assert_allclose(result, stored @ (_W.astype(np.float64) - 3).T * 0.03 * 0.015 + _B, atol=1e-5)
