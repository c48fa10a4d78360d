"""A network whose parameters are in one file and whose graph is in another: both together are one canonical graph.

The graph is that of the network without quantization. Its constants are replaced by the tensors of the same names, and what a module
computes is rounded onto the module's quantization. All of it is literal, Quantize and Dequantize around operators in float; the normal form
of the parameters' format makes quantized operators of that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from qconvert.conversion.states.inserted_operators import Rounding, adjust_inputs, round_at_run_time
from qconvert.conversion.states.joined_layers import join_experts, split_joined_layers
from qconvert.conversion.states.network import Network, align_prefixes, module_of, with_linear_layers
from qconvert.conversion.states.places import Places, place_sequences
from qconvert.conversion.states.tensors import Substitution, require_matched
from qconvert.graph import Graph
from qconvert.graph.metadata import ASSUMED
from qconvert.plugins import Parameters

__all__ = ["join_parameters"]


def join_parameters(parameters: Parameters, graph: Graph, scopes: Mapping[str, str]) -> Graph:
    """The graph with the parameters; its metadata say what was taken for granted.

    Args:
        parameters: of a file without a graph.
        graph: of the network without quantization.
        scopes: tensor -> the module that computes it, where the graph's file says so.

    Raises:
        InvalidModelError: names or shapes of both do not fit.
    """
    graph = with_linear_layers(graph)
    known = {module_of(tensor.name) for tensor in graph.constants()} | set(scopes.values())
    parameters, name_in_file = align_prefixes(parameters, known)
    parameters = join_experts(parameters, graph, known)
    graph = split_joined_layers(graph, parameters.tensors)
    network = Network(graph, scopes, parameters)
    substitution = Substitution(network)
    substitution.run()
    require_matched(network, substitution, name_in_file)
    places = Places(network, substitution.layers)
    places.run()
    place_sequences(network, places)
    Rounding(network, places, substitution.layers).run()
    round_at_run_time(network, substitution.layers)
    adjust_inputs(network, substitution.layers)
    kept = {key: value for key, value in graph.metadata.items() if not key.startswith("source.")}
    notes = [*parameters.notes, *places.notes]
    metadata = {**kept, **parameters.metadata, **({ASSUMED: json.dumps(notes)} if notes else {})}
    return graph.evolve(tensors=network.tensors.values(), ops=network.ops, metadata=metadata)
