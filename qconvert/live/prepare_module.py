"""A module as it is to be read: in eval mode, its fake quantization by the scales that stand in its buffers.

What has to change for this is changed in a copy. Observers must not run while a module is exported or traced: a running average changes
with every call, also in eval mode, and the scales would be others than those that were trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

from qconvert.errors import UnsupportedError
from qconvert.live.fake_quantizers import fixed_quantizer, is_fake_quantizer

__all__ = ["prepare_module"]

_NOT_CONVERTED = (
    "Convert it first, so that there are integers to read: torch.ao.quantization.convert(model.eval()) in eager mode, convert_fx(model) "
    "in FX mode, convert_pt2e(model) for PT2E."
)


def prepare_module(torch: Any, module: Any) -> Any:
    """The module itself where nothing has to change, else a copy that is ready for being written.

    Args:
        torch: the package.
        module: the user's.

    Raises:
        UnsupportedError: it has observers that have not been converted, or scales that are no quantization.
    """
    has_fakes = any(is_fake_quantizer(child) for child in module.modules())
    _require_converted(module)
    if not has_fakes and not any(child.training for child in module.modules()):
        return module
    ready = copy.deepcopy(module)
    _replace_modules(ready, lambda child: fixed_quantizer(torch, child) if is_fake_quantizer(child) else None)
    _to_eval(ready)
    return ready


def _replace_modules(module: Any, replacement: Callable[[Any], Any]) -> None:
    """Puts another module in the place of each for which there is one; a module that stands in several places has one replacement."""
    known: dict[int, Any] = {}
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            if id(child) not in known:
                known[id(child)] = replacement(child)
            if known[id(child)] is not None:
                setattr(parent, name, known[id(child)])


def _to_eval(module: Any) -> None:
    try:
        module.eval()
    except NotImplementedError:  # a graph of torch.export, whose operators say whether they train
        try:
            package = import_module("torchao.quantization.pt2e")
        except ImportError:
            package = import_module("torch.ao.quantization")
        package.move_exported_model_to_eval(module)


def _require_converted(module: Any) -> None:
    """Raises UnsupportedError for observers outside of fake quantizations: they change nothing, and their ranges would be lost."""
    within = {id(inner) for child in module.modules() if is_fake_quantizer(child) for inner in child.modules()}
    left = [
        name
        for name, child in module.named_modules()
        if callable(getattr(child, "calculate_qparams", None)) and hasattr(child, "quant_min") and id(child) not in within
    ]
    if left:
        some = ", ".join(left[:4]) + (" …" if len(left) > 4 else "")
        raise UnsupportedError(
            f"the module is prepared and not converted: it still has observers, {len(left)} in all ({some})",
            remedy=_NOT_CONVERTED,
            rule="not-converted",
        )
