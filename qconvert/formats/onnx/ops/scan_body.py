"""The body of a Scan and its initial states, for operators that are decomposed step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from qconvert.formats.onnx.builder import Builder

__all__ = ["ScanBody", "zero_states"]


class ScanBody:
    """The nodes of a Scan's body; what it names from outside are values of the graph around.

    Args:
        builder: of that graph.
        prefix: of the names inside.
        inputs: what the body takes, and the element type of each: states first, then what it takes of sequences.
    """

    def __init__(self, builder: Builder, prefix: str, inputs: dict[str, int]) -> None:
        self._builder, self._prefix = builder, prefix
        self._types = list(inputs.values())
        self.inputs = [builder.name(f"{prefix}/{what}") for what in inputs]
        self.nodes: list[Any] = []

    def node(self, op_type: str, inputs: list[str], outputs: int = 1, *, hint: str = "", **attributes: Any) -> list[str]:
        from onnx import helper

        names = [self._builder.name(f"{self._prefix}/{hint or op_type}") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names

    def scan(self, given: list[str], states: list[str], shown: str, element_type: int, hint: str, backwards: bool = False) -> list[str]:
        """Adds the Scan over one sequence.

        Args:
            given: first values of the states, and the sequence.
            states: the next value of each.
            shown: what each step gives, and its element type.
            hint: for names.
            backwards: from the last step to the first.

        Returns:
            The last value of each state, and what all steps gave.
        """
        from onnx import helper

        b = self._builder
        count = len(states)
        inputs = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in zip(self.inputs, self._types, strict=True)]
        results = zip((*states, shown), (*self._types[:count], element_type), strict=True)
        outputs = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in results]
        graph = helper.make_graph(self.nodes, self._prefix, inputs, outputs)
        own = {*self.inputs, *(name for node in self.nodes for name in node.output)}
        b.hidden_reads[len(b.nodes)] = [name for node in self.nodes for name in node.input if name not in own]
        ways: dict[str, Any] = {"scan_input_directions": [1], "scan_output_directions": [1]} if backwards else {}
        return b.node("Scan", given, count + 1, hint=hint, body=graph, num_scan_inputs=1, **ways)


def zero_states(b: Builder, data: str, size: int, hint: str) -> str:
    """States of zeros, of shape (rows, size), for data of shape (steps, rows, inputs)."""
    whole = b.node("Shape", [data], hint=f"{hint}/shape")
    bounds = [b.const(np.array([value], np.int64), "constant/sizes") for value in (1, 2)]
    rows = b.node("Slice", [*whole, *bounds], hint=f"{hint}/rows")
    sizes = b.node("Concat", [*rows, b.const(np.array([size], np.int64), "constant/sizes")], hint=f"{hint}/sizes", axis=0)
    return b.node("ConstantOfShape", sizes, hint=hint)[0]
