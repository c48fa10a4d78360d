"""Arguments that no model has end in one error, before memory is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from qconvert.conversion.loading import load
from qconvert.errors import QConvertError, UnsupportedError
from qconvert.evaluate import evaluate
from tests.torchscript_models import archive, graph_of, net

pytestmark = pytest.mark.formats


@pytest.mark.parametrize(
    "call",
    [
        "torch.layer_norm(x, [1099511627776])",
        "torch.rms_norm(x, [4, 1099511627776], None, None)",
        "torch.adaptive_avg_pool2d(x, [1099511627776, 2])",
        "torch.adaptive_avg_pool2d(x, [0, 2])",
        "torch.upsample_nearest2d(x, [1099511627776, 2], None)",
        "torch.upsample_nearest2d(x, None, [inf, 2.0])",
        "torch.upsample_bilinear2d(x, None, False, [0.0, 2.0])",
        "torch.upsample_bilinear2d(x, None, False, None)",
        "torch.max_pool2d(x, [2, 2], [2, 2], [5, 5], [1, 1])",
        "torch.max_pool2d(x, [], [2, 2])",
        "torch.group_norm(x, 0, None, None)",
        "torch.softmax(x, 9)",
        "torch.glu(x, 2)",
        "torch.conv_transpose2d(x, x, None, [1, 1], [0, 0], [0, 0], 3)",
        "torch.var(x, [1], correction=9)",
        "torch.batch_norm(x, None, None, None, None, False, 0.1, 1e-05, True)",
        "torch.batch_norm(x, None, None, x, x, True, 0.1, 1e-05, True)",
        "torch.max_pool2d_with_indices(x, [2, 2])[1]",
        "torch.slice_scatter(torch.zeros([100000000]), torch.zeros([50000000]), 0, 0, 100000000, 2)",
        "torch.diagonal_scatter(torch.zeros([30000, 30000]), torch.zeros([30000]))",
        "torch.trace(torch.zeros([30000, 30000]))",
        "torch.unfold(torch.zeros([100000]), 0, 50000, 1)",
        "torch.im2col(torch.zeros([1, 4096, 64, 64]), [64, 64], [1, 1], [0, 0], [1, 1])",
        "torch.col2im(torch.zeros([1, 4, 4]), [0, 0], [0, 0], [1, 1], [0, 0], [0, 0])",
        "ops.quantized.add_scalar(x, 2.5)",
        "ops.quantized.mul_scalar(torch.quantize_per_tensor(x, 0.1, 0, 13), inf)",
        "ops.quantized.add_scalar(torch.quantize_per_tensor(x, 0.1, 0, 13), inf)",
    ],
)
def test_an_argument_that_no_model_has_is_refused(tmp_path: Path, call: str) -> None:
    path = archive(tmp_path / "m.pt", net(f"return {call}"), traced=[("float32", (2, 4, 5, 7))])
    with pytest.raises(QConvertError):
        graph_of(path)


@pytest.mark.parametrize(("name", "arguments"), [("bilinear2d", "None, False, "), ("bilinear2d", "None, True, "), ("nearest2d", "None, ")])
def test_open_sizes_times_whole_factors_are_no_limit(tmp_path: Path, name: str, arguments: str) -> None:
    """The size wanted is then a product, and where an element lies follows from the sizes."""
    path = archive(tmp_path / "m.pt", net(f"return torch.upsample_{name}(x, {arguments}[2.0, 3.0])"))
    open_sizes, stated = load(path, input_shape="n,3,h,w"), load(path, input_shape="2,3,4,5")
    feed = {open_sizes.inputs[0]: np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    found, wanted = (next(iter(evaluate(graph, feed).values())) for graph in (open_sizes, stated))
    assert found.shape == (2, 3, 8, 15) and np.allclose(found, wanted, atol=1e-6)
    with refused(UnsupportedError, "shape-not-stated"):
        fraction = archive(tmp_path / "fraction.pt", net(f"return torch.upsample_{name}(x, {arguments}[2.0, 1.5])"))
        load(fraction, input_shape="n,3,h,w")


def test_slopes_of_a_single_number_leave_it_one(tmp_path: Path) -> None:
    graph = load(archive(tmp_path / "m.pt", net("return torch.prelu(torch.sum(x), torch.full([1], 0.2))"), traced=[("float32", (2, 3))]))
    (found,) = evaluate(graph, {graph.inputs[0]: np.full((2, 3), -1, np.float32)}).values()
    assert found.shape == () and np.isclose(found, -1.2)
