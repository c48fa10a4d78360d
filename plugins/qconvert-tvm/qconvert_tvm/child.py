"""The program that compiles and runs a model with TVM in a process of its own: a graph may end it. It imports nothing of qconvert.

Questions are {"load": [file, threads]}, and {"run": [[dtype, shape]…]} with the inputs, in the model's order, after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LINES = 3  # of an error message of TVM that are shown


def _compile_model(tvm: Any, path: str, threads: int) -> Any:
    """Compile a model for Relax's virtual machine."""
    import onnx
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    if threads:
        tvm.get_global_func("runtime.config_threadpool")(1, threads)
    with tvm.transform.PassContext(opt_level=3):
        return relax.VirtualMachine(tvm.compile(module, target=tvm.target.Target("llvm")), tvm.cpu())


def _run_model(tvm: Any, machine: Any, given: list[Any]) -> list[Any]:
    found = machine["main"](*(tvm.runtime.tensor(value, tvm.cpu()) for value in given))
    return [found.numpy()] if hasattr(found, "numpy") else [item.numpy() for item in found]


def _shorten_error(error: Exception) -> str:
    """Return TVM's message without its stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("File ", "Traceback", "^", "[bt]"))][:_LINES]
    return f"{type(error).__name__}: {' '.join(told)}" if told else type(error).__name__


def start() -> Callable[..., tuple[dict[str, Any], list[Any]]]:
    """Return what answers questions."""
    import tvm

    loaded: list[Any] = []

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], list[Any]]:
        given = [read(dtype, shape) for dtype, shape in question.get("run", ())]
        try:
            if "load" in question:
                loaded.append(_compile_model(tvm, *question["load"]))
                machine = tvm.target.Target("llvm").attrs.get("mtriple", "this machine's CPU")
                return {"version": str(tvm.__version__), "machine": str(machine)}, []
            arrays = _run_model(tvm, loaded[-1], given)
        except Exception as error:  # errors of TVM share no base class but Exception
            return {"error": _shorten_error(error)}, []
        return {"arrays": [[item.dtype.name, list(item.shape)] for item in arrays]}, arrays

    return answer
