"""Imports at the first use of a name, so that the command line starts without numpy: names of public modules, and functions in tables."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # see qconvert/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_getattr(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module.

    Args:
        module: its name, for the error.
        homes: where names come from: module -> names, with spaces between; one that has another name there is written `own=there`.
    """
    found: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for name in names.split():
            own, _, there = name.partition("=")
            found[own] = home, there or own

    def import_name(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, there = found[name]
        return getattr(import_module(home), there)

    return import_name


def defer_imports(package: str) -> Callable[[str, str], Callable[..., Any]]:
    """Return what makes, of the names of a module of a package and of a function in it, a function that imports the module at its call."""

    def defer(module: str, name: str) -> Callable[..., Any]:
        return lambda *arguments, **options: getattr(import_module(f"{package}.{module}"), name)(*arguments, **options)

    return defer
