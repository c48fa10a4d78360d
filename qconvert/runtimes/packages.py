"""Packages that run models: none of them is needed for a conversion, so each is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qconvert.errors import MissingPackageError

__all__ = ["runtime_package"]


def runtime_package(module: str, extra: str, purpose: str) -> Any:
    """The module of a package that runs models.

    Args:
        module: its name, such as "onnxruntime".
        extra: of qconvert, which installs it.
        purpose: what the package does, as the end of "…, which".

    Raises:
        MissingPackageError: it is not installed, or cannot be imported here.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or package).partition(".")[0] == package
        state = "is not installed" if absent else f"cannot be imported: {error}"
        raise MissingPackageError(
            f"the package {package}, which {purpose}, {state}",
            remedy=f"Install it with: pip install 'qconvert[{extra}]'",
            rule="package-missing",
        ) from error
