"""The package openvino, which is imported when it is used."""

from __future__ import annotations

from typing import Any

from qconvert.plugin import MissingPackageError


def import_openvino() -> Any:
    """Return the module. Raise MissingPackageError if it cannot be imported."""
    try:
        import openvino as found
    except ImportError as error:
        raise MissingPackageError(
            f"the package openvino, which writes and runs OpenVINO models, cannot be imported: {error}",
            remedy="Install it with: pip install openvino",
            rule="package-missing",
        ) from error
    return found
