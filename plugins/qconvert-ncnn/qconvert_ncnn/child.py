"""The program that runs ncnn in a process of its own: a damaged network may end it. It imports nothing of qconvert.

Questions are {"load": [param, bin, threads]}, and {"run": [[name, sizes]…], "give": [name…]} with the inputs, float32, after it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np


def _load_network(param: str, weights: str, threads: int) -> Any:
    os.environ["OMP_NUM_THREADS"] = str(max(threads, 1))  # read at ncnn's start; further threads would spin
    import ncnn

    net = ncnn.Net()
    net.opt.use_vulkan_compute = False
    # Float values stay float32, as files and graphs have them.
    for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage", "use_bf16_packed"):
        with contextlib.suppress(AttributeError):  # of later versions
            setattr(net.opt, name, False)
    net.opt.num_threads = max(threads, 1)
    if net.load_param(param) != 0 or net.load_model(weights) != 0:
        raise RuntimeError("the files cannot be loaded")
    return net


def _run_network(net: Any, given: list[tuple[str, Any]], wanted: list[str]) -> list[Any]:
    import ncnn

    extractor = net.create_extractor()
    for name, data in given:
        if extractor.input(name, ncnn.Mat(data).clone()) != 0:  # the Mat itself borrows the memory
            raise RuntimeError(f"there is no input {name!r}")
    found = []
    for name in wanted:
        code, result = extractor.extract(name)
        if code != 0:
            raise RuntimeError(f"the output {name!r} cannot be computed (code {code})")
        found.append(np.array(result, np.float32))
    return found


def start() -> Callable[..., tuple[dict[str, Any], list[Any]]]:
    """Return what answers questions."""
    loaded: list[Any] = []

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], list[Any]]:
        if "load" in question:
            loaded.append(_load_network(*question["load"]))
            import ncnn

            return {"version": str(ncnn.__version__)}, []
        arrays = _run_network(loaded[-1], [(name, read("float32", sizes).copy()) for name, sizes in question["run"]], question["give"])
        return {"arrays": [["float32", list(item.shape)] for item in arrays]}, arrays

    return answer
