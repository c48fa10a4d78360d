"""Fake quantization of torch.ao and torchao as one operator each: quantization and limits as the module has them now."""

from __future__ import annotations

from typing import Any

from qconvert.errors import UnsupportedError

__all__ = ["fixed_quantizer", "is_fake_quantizer"]


def is_fake_quantizer(module: Any) -> bool:
    """Whether a module is one of the FakeQuantize classes: they have a quantization and switches, and are told by these attributes.

    These are FakeQuantize, FusedMovingAvgObsFakeQuantize and FixedQParamsFakeQuantize of torch.ao.quantization and of torchao, and
    _LearnableFakeQuantize (LSQ).
    """
    has_quantization = all(hasattr(module, name) for name in ("scale", "zero_point", "fake_quant_enabled", "activation_post_process"))
    return has_quantization and callable(
        getattr(module, "calculate_qparams", None)
    )  # an exported graph keeps their buffers in plain modules


def fixed_quantizer(torch: Any, fake: Any) -> Any:
    """A module that does what a fake quantization with its observer switched off does, as one operator of aten.

    Their own forward functions ask tensors whether they are to observe, which torch.export cannot follow.

    Args:
        torch: the package.
        fake: the module; it is not changed.

    Raises:
        UnsupportedError: its scales were never set, or are no positive numbers.
    """
    if int(fake.fake_quant_enabled.reshape(-1)[0]) == 0:
        return torch.nn.Identity()
    observer = fake.activation_post_process
    low, high = (int(getattr(observer if hasattr(observer, name) else fake, name)) for name in ("quant_min", "quant_max"))
    scale, zero_point = _effective_qparams(torch, fake, low, high)
    if scale.numel() == 0 or not bool(torch.isfinite(scale).all()) or not bool((scale > 0).all()):
        raise UnsupportedError(
            f"the scales of a {type(fake).__name__} are {scale.tolist()}; PyTorch requires positive numbers", rule="scale-not-positive"
        )
    axis = int(getattr(fake, "ch_axis", getattr(observer, "ch_axis", -1)))
    per_channel = bool(getattr(fake, "is_per_channel", False)) or scale.numel() > 1
    return _fixed_class(torch)(scale, zero_point, axis if per_channel else None, low, high)


def _effective_qparams(torch: Any, fake: Any, low: int, high: int) -> tuple[Any, Any]:
    """Scale and zero point as the kernel uses them; LSQ trains both as real numbers, and its kernel rounds the zero point."""
    scale, zero_point = fake.scale.detach().clone().float(), fake.zero_point.detach().clone()
    if zero_point.is_floating_point():
        symmetric = str(getattr(fake, "qscheme", "")).endswith("symmetric")
        zero_point = torch.zeros_like(zero_point) if symmetric else zero_point.round().clamp(low, high)
        scale = scale.clamp(min=float(fake.eps.reshape(-1)[0])) if hasattr(fake, "eps") else scale
    return scale, zero_point.to(torch.int32)


def _fixed_class(torch: Any) -> Any:
    class FixedFakeQuantize(torch.nn.Module):  # type: ignore[misc]
        """fake_quantize_per_tensor_affine or fake_quantize_per_channel_affine with a quantization of its own."""

        def __init__(self, scale: Any, zero_point: Any, axis: int | None, low: int, high: int) -> None:
            super().__init__()
            self.register_buffer("scale", scale)
            self.register_buffer("zero_point", zero_point)
            self.axis, self.low, self.high = axis, low, high

        def forward(self, x: Any) -> Any:
            if self.axis is None:
                return torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero_point, self.low, self.high)
            return torch.fake_quantize_per_channel_affine(x, self.scale, self.zero_point, self.axis, self.low, self.high)

    return FixedFakeQuantize
