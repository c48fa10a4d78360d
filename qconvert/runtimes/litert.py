"""Runs a .tflite model in LiteRT."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from qconvert.errors import OptionError, RuntimeRefusedError
from qconvert.graph import Array

__all__ = ["KERNELS", "LiteRT"]

#: Names of LiteRT's kernel sets -> its OpResolverType: default is XNNPACK where it has a kernel, reference the plain C++ ones.
KERNELS = {"default": "AUTO", "reference": "BUILTIN_REF"}


class LiteRT:
    """A .tflite model loaded in LiteRT.

    Args:
        model: the file's content.
        kernels: a key of KERNELS.
        threads: number of threads.

    Attributes:
        inputs: name -> (dtype, shape), in order.
        outputs: likewise.
        note: what a user should know of how it runs; "" if there is nothing.

    Raises:
        RuntimeRefusedError: LiteRT does not take the model.
    """

    note = ""

    def __init__(self, model: bytes, kernels: str = "default", threads: int = 1) -> None:
        if kernels not in KERNELS:
            raise OptionError(f"there are no kernels {kernels!r}", remedy=f"Use one of {', '.join(KERNELS)}.")
        with _quiet():
            from ai_edge_litert.interpreter import Interpreter, OpResolverType

            try:
                self._interpreter = Interpreter(
                    model_content=bytes(model),
                    experimental_op_resolver_type=getattr(OpResolverType, KERNELS[kernels]),
                    num_threads=threads,
                )
                self._interpreter.allocate_tensors()
            except (ValueError, RuntimeError) as error:
                raise RuntimeRefusedError(f"LiteRT does not take the model: {error}") from error
        self.inputs = self._describe(self._interpreter.get_input_details())
        self.outputs = self._describe(self._interpreter.get_output_details())

    @staticmethod
    def _describe(details: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {item["name"]: (np.dtype(item["dtype"]).name, tuple(int(s) for s in item["shape"])) for item in details}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs once. Inputs are stored values by name; returns stored outputs by name."""
        return dict(zip(self.outputs, self.run_in_order([inputs[name] for name in self.inputs]), strict=False))

    def run_in_order(self, inputs: list[Array]) -> list[Array]:
        """Runs once with inputs and outputs in the model's order; names need not be unique."""
        details = self._interpreter.get_input_details()
        resized = [(item, value) for item, value in zip(details, inputs, strict=True) if tuple(value.shape) != tuple(item["shape"])]
        for item, value in resized:
            self._interpreter.resize_tensor_input(item["index"], value.shape)
        if resized:
            self._interpreter.allocate_tensors()
        for item, value in zip(details, inputs, strict=True):
            self._interpreter.set_tensor(item["index"], np.asarray(value, order="C"))
        try:
            self._interpreter.invoke()
        except (ValueError, RuntimeError) as error:
            raise RuntimeRefusedError(f"LiteRT failed while running the model: {error}") from error
        return [self._interpreter.get_tensor(item["index"]) for item in self._interpreter.get_output_details()]


@contextmanager
def _quiet() -> Iterator[None]:
    """LiteRT writes progress to the process's standard error, past Python; only its errors, which are raised, matter."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    saved = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)
