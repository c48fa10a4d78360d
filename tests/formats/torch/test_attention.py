"""Layers of attention that PyTorch runs as one operator in evaluation: traces of them give what PyTorch gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from refusals import refused

from qconvert import convert, load
from qconvert.errors import UnsupportedError
from qconvert.evaluate import evaluate

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = [pytest.mark.onnxruntime, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

_X = torch.linspace(-2, 2, 2 * 5 * 12).sin().reshape(2, 5, 12)
_CAUSAL = torch.ones(5, 5).triu(1).bool()
_PADDED = torch.tensor([[False, False, False, True, True], [False, False, False, False, True]])


class Layer(nn.Module):
    """An encoder layer with the masks that it is given."""

    def __init__(self, mask: Any = None, padding: Any = None, **options: Any) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(12, 4, 20, batch_first=True, **options)
        self.mask, self.padding = mask, padding
        for norm in (self.layer.norm1, self.layer.norm2):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_mask=self.mask, src_key_padding_mask=self.padding)


class Attention(nn.Module):
    """Self-attention, with or without its weights as a result."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer, self.options = nn.MultiheadAttention(12, 4, batch_first=True), options
        nn.init.normal_(self.layer.in_proj_bias)

    def forward(self, x: torch.Tensor) -> Any:
        result, weights = self.layer(x, x, x, **self.options)
        return result if weights is None else (result, weights)


_LAYERS = {
    "encoder": lambda: Layer(),
    "encoder_norm_first_gelu": lambda: Layer(norm_first=True, activation="gelu"),
    "encoder_causal": lambda: Layer(mask=_CAUSAL),
    "encoder_added_mask": lambda: Layer(mask=torch.zeros(5, 5).masked_fill(_CAUSAL, -torch.inf)),
    "encoder_padding": lambda: Layer(padding=_PADDED),
    "encoder_both_masks": lambda: Layer(mask=_CAUSAL, padding=_PADDED),
    "attention": lambda: Attention(need_weights=False),
    "attention_and_mean_weights": lambda: Attention(),
    "attention_and_weights": lambda: Attention(average_attn_weights=False, attn_mask=_CAUSAL),
}


def _trace(path: Path, module: nn.Module, operator: str) -> list[np.ndarray]:
    """Writes the trace of a module in evaluation, which holds an operator of a whole layer; returns what PyTorch computes."""
    with torch.no_grad():
        traced = torch.jit.trace(module.eval(), (_X,))
        wanted = module(_X)
    assert operator in str(traced.inlined_graph)
    traced.save(path)
    return [value.numpy() for value in (wanted if isinstance(wanted, tuple) else (wanted,))]


@pytest.mark.parametrize("name", _LAYERS)
def test_layers(tmp_path: Path, name: str) -> None:
    torch.manual_seed(len(name))
    operator = "aten::_transformer_encoder_layer_fwd" if name.startswith("encoder") else "aten::_native_multi_head_attention"
    wanted = _trace(tmp_path / "a.pt", _LAYERS[name](), operator)
    graph = load(tmp_path / "a.pt")
    values = evaluate(graph, {graph.inputs[0]: _X.numpy()})
    convert(tmp_path / "a.pt", tmp_path / "a.onnx")
    session = ort.InferenceSession(tmp_path / "a.onnx")
    for found in ([values[output] for output in graph.outputs], session.run(None, {session.get_inputs()[0].name: _X.numpy()})):
        for value, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(value, expected, atol=2e-6)


def test_keys_of_other_data_are_refused(tmp_path: Path) -> None:
    class Cross(nn.Module):
        def forward(self, x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> Any:
            return torch._native_multi_head_attention(x, x + 1, x + 1, 12, 4, weights, bias, weights[:12], bias[:12])[0]

    torch.jit.trace(Cross(), (_X, torch.ones(36, 12), torch.ones(36))).save(tmp_path / "a.pt")
    with refused(UnsupportedError, "form-not-covered"):
        load(tmp_path / "a.pt")
