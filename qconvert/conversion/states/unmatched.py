"""What of the file has no place in the graph, and what of the graph is not in the file: nothing stale may stay in a result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qconvert.conversion.states.network import Network
from qconvert.conversion.states.tensors import Substitution
from qconvert.errors import InvalidModelError, format_count
from qconvert.graph import Tensor
from qconvert.graph.names import quote_nearest

__all__ = ["require_matched"]

_REMEDY = (
    "Give the float graph of the same network, with the names of its modules, as torch.export.save or torch.onnx.export writes it: "
    "no other tool must have simplified it."
)


def require_matched(network: Network, substitution: Substitution, name_in_file: Callable[[str], str]) -> None:
    """Raises InvalidModelError if a constant or a tensor is left that the other side lacks, and says which are near."""
    unknown = list(substitution.unknown)
    spare = [name for name in network.known if name not in substitution.used and _is_missed(network, network.known[name], substitution)]
    spare += [f"{name}.weight" for name in network.parameters.folded if name not in substitution.layers.values()]
    if not unknown and not spare:
        return
    parts = []
    keys = [name_in_file(name) for name in [*network.known, *(f"{name}.weight" for name in network.parameters.folded)]]
    if unknown:
        parts.append(
            f"{format_count(len(unknown), 'constant')} of the graph {'is' if len(unknown) == 1 else 'are'} not in the file: "
            f"{quote_nearest(unknown, keys)}"
        )
    if spare:
        constants = [tensor.name for tensor in network.graph.constants() if tensor.rank]
        parts.append(
            f"{format_count(len(spare), 'tensor')} of the file {'is' if len(spare) == 1 else 'are'} not in the graph: "
            f"{quote_nearest(map(name_in_file, spare), constants)}"
        )
    raise InvalidModelError("; ".join(parts), remedy=_REMEDY, rule="constants-unmatched")


def _is_missed(network: Network, tensor: Tensor, substitution: Substitution) -> bool:
    """Whether a tensor that has no place would be missed: it is real or quantized, and no constant of the graph has its very values.

    Exporters compute constants of constants: a weight that has got further axes has its values still.
    """
    if tensor.data is None or (not tensor.is_quantized and "float" not in tensor.dtype):
        return False
    if tensor.is_quantized:
        return True
    flat = np.asarray(tensor.data).reshape(-1)
    return not any(
        other.data is not None and other.data.size == flat.size and _has_same_values(flat, other) for other in network.graph.constants()
    )


def _has_same_values(flat: np.ndarray, other: Tensor) -> bool:
    data = np.asarray(other.data)
    return np.array_equal(flat, data.reshape(-1)) or (data.ndim == 2 and np.array_equal(flat, data.T.reshape(-1)))
