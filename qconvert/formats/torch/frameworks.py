"""PyTorch itself, which writing needs and reading never touches."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from qconvert.errors import MissingPackageError

__all__ = ["newer_version", "quantized_modules", "torch_package"]

#: The first version whose kernels round otherwise than arithmetic/torch_kernels.py, or may; pyproject.toml has it too.
_UNMEASURED = (2, 14)

_REMEDY = (
    "Install it with: pip install 'qconvert[torch]'. The build without GPU libraries is much smaller: "
    "`pip install 'torch<2.14' --index-url https://download.pytorch.org/whl/cpu`"
)


def torch_package() -> Any:
    """The module torch, with the operators of quantized_decomposed registered.

    Raises:
        MissingPackageError: it is not installed, or cannot be imported here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch = import_module("torch")
            import_module("torch.ao.quantization.fx._decomposed")  # registers quantized_decomposed
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch"
        state = "is not installed" if absent else f"cannot be imported: {error}"
        raise MissingPackageError(
            f"the package torch, which writes and runs PyTorch files, {state}", remedy=_REMEDY, rule="package-missing"
        ) from error
    return torch


def newer_version() -> str:
    """The version of PyTorch, if it is one whose roundings are not known; else ""."""
    version = str(torch_package().__version__)
    known = tuple(int(part) for part in version.split(".")[:2]) < _UNMEASURED
    return "" if known else version


def quantized_modules(fused: bool = False) -> Any:
    """The modules torch.ao.nn.quantized, or those with a Relu inside, torch.ao.nn.intrinsic.quantized."""
    torch_package()
    return import_module("torch.ao.nn.intrinsic.quantized" if fused else "torch.ao.nn.quantized")
