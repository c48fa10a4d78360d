"""Quantizations that a file lists in the order of the operators, without saying which operators these are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from qconvert.conversion.states.network import Network
from qconvert.conversion.states.places import Places
from qconvert.encodings import QParams
from qconvert.errors import InvalidModelError
from qconvert.graph import Op
from qconvert.operators import kind_of

_REMEDY = (
    "Give a graph of the same network and of the same version of its code. A TorchScript file of the quantized model "
    "(torch.jit.trace) holds everything."
)

_OF_TRAINING = (
    "A Dropout has an observer too, but no graph shows it. Save the model under training itself, which holds everything:\n"
    "    import torch\n"
    "    model.eval().apply(torch.ao.quantization.disable_observer)\n"
    "    torch.export.save(torch.export.export(model, example_inputs), 'model.pt2')"
)


def place_sequences(network: Network, places: Places) -> None:
    """Places the quantizations of functions: of a quantized network those without a module, of one in training every operator's.

    Raises:
        InvalidModelError: there are more or fewer quantizations than operators.
    """
    for path, quantizations in network.parameters.functions.items():
        if network.parameters.trained:
            _place_observed(network, places, quantizations)
        else:
            _place_functions(network, places, path, quantizations)


def _place_functions(network: Network, places: Places, path: str, quantizations: Sequence[QParams]) -> None:
    """The operators of a module's own code that need a quantization and have none yet take these in their order.

    A quantization equal to an earlier tensor's may belong to an operator that keeps its data's quantization; the result needs none then.
    """
    ends = places.outputs_of_path(path) if path and len(quantizations) == 1 else []
    if len(ends) == 1:
        places.put_after_relu(ends[0], quantizations[0])
        return
    ops = places.listed_ops(path)
    wanting = [op for op in ops if _needs_quantization(network, places, op)]
    left = _without_repeated(quantizations, places.following.values(), len(quantizations) - len(wanting))
    if len(left) != len(wanting):
        where = f"the module {path!r}" if path else "the network's own code"
        raise InvalidModelError(
            f"{len(quantizations)} pairs of scale and zero point are listed for operators in {where}, and {len(wanting)} operators "
            f"require one there: {', '.join(op.outputs[0] for op in wanting[:8]) or 'none'}",
            remedy=_REMEDY,
            rule="module-count",
        )
    for op, quantization in zip(wanting, left, strict=True):
        places.put_after_relu(op.outputs[0], quantization)


def _without_repeated(quantizations: Sequence[QParams], known: Iterable[QParams], most: int) -> list[QParams]:
    """The quantizations without those that stand among known ones or before in the list, the first `most` of these."""
    seen = {_key(quantization) for quantization in known}
    kept = []
    for quantization in quantizations:
        key = _key(quantization)
        if key in seen and most > 0:
            most -= 1
        else:
            kept.append(quantization)
        seen.add(key)
    return kept


def _key(quantization: QParams) -> tuple[Hashable, ...]:
    return quantization.dtype, quantization.quantization.key


def _needs_quantization(network: Network, places: Places, op: Op) -> bool:
    """Whether an operator of values computes what no quantization of its data fits: sums and products of two values, activations, norms."""
    if not op.outputs or op.outputs[0] in places.following or op.outputs[0] in places.inner or kind_of(op).rule != "real":
        return False
    if kind_of(op).keeps_range or network.fixed(op) is not None or network[op.outputs[0]].dtype != "float32":
        return False
    two = kind_of(op).affine is None or not any(network.constant(name) is not None for name in op.inputs)
    return two and bool(network.data(op))


def _place_observed(network: Network, places: Places, quantizations: Sequence[QParams]) -> None:
    """Places the observers of FX, for each operator that FX quantizes: first on its data without an observer, then on its result.

    An operator that keeps its data's quantization has the same observer once more, unless a concatenation shares one among its data: so it
    is seen whether the operators of the graph are those of the list.
    """
    left = list(reversed(quantizations))
    fused: set[str] = set()
    for op in network.ops:
        data = [name for name in network.data(op) if network[name].dtype == "float32"] if network.is_observed(op) else []
        if not data or op.outputs[0] in fused:
            continue
        for name in data:
            if name not in places.following:
                places.put(name, _take_next(left, quantizations, op))
        name = _fused_result(network, op)
        fused.add(name)
        held, quantization = places.following[data[0]], _take_next(left, quantizations, op)
        kind = kind_of(op)
        keeps = not kind.chooses and (kind.keeps_range or (kind.affine is not None and len(data) == 1))
        if (
            keeps
            and _key(held) != _key(quantization)
            and not any(network.function(reader) == "cat" for reader in network.consumers.get(name, []))
        ):
            raise _observers_error(quantizations, op)
        places.put(name, quantization)
    if left:
        raise _observers_error(quantizations, None)


def _take_next(left: list[QParams], quantizations: Sequence[QParams], op: Op) -> QParams:
    if not left:
        raise _observers_error(quantizations, op)
    return left.pop()


def _fused_result(network: Network, op: Op) -> str:
    """The result of an operator with the Relu that was fused with it: FX has one observer for both."""
    return (network.only_consumer(op.outputs[0], "Relu") or op).outputs[0]


def _observers_error(quantizations: Sequence[QParams], op: Op | None) -> InvalidModelError:
    found = f"they do not fit the operators from {op} on" if op is not None else "some are left after the last operator"
    return InvalidModelError(
        f"{len(quantizations)} observers are listed in the order of the operators, and {found}",
        remedy=_OF_TRAINING,
        rule="observers-do-not-fit",
    )
