"""Names of modules and tensors: a prefix of the file or of the graph alone, and paths compared with "_" for "."."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from qconvert.plugins import Folding, Parameters

__all__ = ["align_prefixes", "is_in_module", "module_of", "same_path"]

_MOST_PREFIXES = 64


def module_of(name: str) -> str:
    """The module of a tensor: "features.0" of "features.0.weight"."""
    return name.rpartition(".")[0]


def is_in_module(module: str, other: str) -> bool:
    """Whether a module is another or stands in it."""
    return not other or module == other or module.startswith(f"{other}.")


def same_path(path: str) -> str:
    """A path in which "_" stands for "." too, as in the names of attributes that FX makes."""
    return path.replace(".", "_")


def align_prefixes(parameters: Parameters, known: set[str]) -> tuple[Parameters, Callable[[str], str]]:
    """The parameters without a prefix missing in the graph's names, such as "module." of a wrapper, and with a prefix missing in the file.

    Args:
        parameters: of the file.
        known: the modules that the graph's names tell.

    Returns:
        The parameters by the graph's names, and what gives a name of the graph as the file has it.
    """
    modules = {module_of(name) for name in parameters.tensors} | set(parameters.folded)
    lacking, extra = _best_prefix(modules, known), "" if modules & known else _best_prefix(known, modules)
    without = sum(_cut_prefix(module, lacking) in known for module in modules)
    if without <= max(sum(module in known for module in modules), sum(f"{extra}{module}" in known for module in modules) if extra else 0):
        lacking = ""
    if lacking:
        return _rename_parameters(parameters, lambda name: _cut_prefix(name, lacking)), lambda name: f"{lacking}{name}"
    if extra:
        return _rename_parameters(parameters, lambda name: f"{extra}{name}" if name else name), lambda name: _cut_prefix(name, extra)
    return parameters, lambda name: name


def _cut_prefix(name: str, prefix: str) -> str:
    return "" if f"{name}." == prefix else name.removeprefix(prefix)


def _best_prefix(names: Iterable[str], known: Iterable[str]) -> str:
    """The prefix without which most names are known; the shortest of the best."""
    listed, others = set(names), set(known)
    prefixes = {name[: place + 1] for name in listed for place, letter in enumerate(name) if letter == "."} | {f"{n}." for n in listed if n}
    few = sorted(prefixes, key=lambda prefix: (prefix.count("."), prefix))[:_MOST_PREFIXES]
    scores = {prefix: sum(_cut_prefix(name, prefix) in others for name in listed if f"{name}.".startswith(prefix)) for prefix in few}
    best = max(scores.values(), default=0)
    return next((prefix for prefix in few if scores[prefix] == best), "") if best else ""


def _rename_parameters(parameters: Parameters, new: Callable[[str], str]) -> Parameters:
    def rename_keys(values: Mapping[str, Any]) -> dict[str, Any]:
        return {new(name): value for name, value in values.items()}

    return replace(
        parameters,
        tensors={new(name): replace(tensor, name=new(name)) for name, tensor in parameters.tensors.items()},
        absent=frozenset(map(new, parameters.absent)),
        folded={new(name): _renamed_folding(folding, new) for name, folding in parameters.folded.items()},
        results=rename_keys(parameters.results),
        inputs=rename_keys(parameters.inputs),
        data={_rename_path(name, new): value for name, value in parameters.data.items()},
        functions={_rename_path(name, new): value for name, value in parameters.functions.items()},
        dynamic=rename_keys(parameters.dynamic),
        orders=rename_keys(parameters.orders),
        factors=rename_keys(parameters.factors),
        decodings=rename_keys(parameters.decodings),
        places=rename_keys(parameters.places),
    )


def _rename_path(name: str, new: Callable[[str], str]) -> str:
    """A path with underscores, whose prefix is one with dots."""
    return new(name)


def _renamed_folding(folding: Folding, new: Callable[[str], str]) -> Folding:
    def tensors(epsilon: float) -> Mapping[str, Any]:
        return {new(name): replace(tensor, name=new(name)) for name, tensor in folding.tensors(epsilon).items()}

    return Folding(tensors, folding.has_norm)
