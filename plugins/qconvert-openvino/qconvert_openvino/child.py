"""The program that compiles and runs a model with OpenVINO in a process of its own: a graph may end it. It imports nothing of qconvert.

Questions are {"load": [file, kernels, threads], "entries": paths of runtime information, each a list of names}, and
{"run": [[dtype, shape]…]} with the inputs, in the model's order, after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Layers without arithmetic: they change types, sizes or layouts.
_CONVERT = frozenset(("Convert", "Reorder", "Reshape", "Transpose", "FakeQuantize", "Input", "Output", "Const"))
_INTEGERS = ("i8", "u8", "I8", "U8")
_LINES = 4  # of an error message of OpenVINO that are shown


def _compile_model(ov: Any, path: str, kernels: str, threads: int) -> tuple[Any, int, Any]:
    """Return the openvino.Model of a file, its number of outputs, and the model that the CPU plugin has compiled.

    float32 is requested, since the plugin would use bfloat16 on CPUs that support it. The kernels "unfused" make the operands of sums
    outputs, so that the plugin rounds them.
    """
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "CACHE_DIR": ""}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    if kernels == "real":
        settings |= {"LP_TRANSFORMS_MODE": False, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    core = ov.Core()
    model = core.read_model(path)
    count = len(model.outputs)
    if kernels == "unfused":
        model.add_outputs([(name, 0) for name in _find_sum_operands(model)])
    return model, count, core.compile_model(model, "CPU", settings)


def _find_sum_operands(model: Any) -> list[str]:
    """Return the names of FakeQuantizes that an Add reads."""
    found = []
    for node in model.get_ordered_ops():
        readers = node.output(0).get_target_inputs() if node.get_type_name() == "FakeQuantize" else ()
        if any(reader.get_node().get_type_name() == "Add" for reader in readers):
            found.append(str(node.get_friendly_name()))
    return found


def _describe_model(ov: Any, model: Any, count: int, compiled: Any, entries: list[list[str]]) -> dict[str, Any]:
    """Return inputs and outputs, each [name, OpenVINO's type, sizes], entries of the runtime information, and the executed layers."""
    # In the compiled model equal values share their names.
    sides = {"inputs": (model.inputs, compiled.inputs), "outputs": (model.outputs[:count], compiled.outputs[:count])}
    described: dict[str, Any] = {
        side: [[_name(own), str(item.get_element_type().get_type_name()), _sizes(item)] for own, item in zip(*pair, strict=True)]
        for side, pair in sides.items()
    }
    described["entries"] = [str(model.get_rt_info(place).value) if model.has_rt_info(place) else None for place in entries]
    try:
        layers = _read_executed_layers(compiled)
    except Exception as error:  # of 16-bit data
        return described | {"unstated": _shorten_error(error)}
    summed = {*_find_sum_operands(model)}
    clipped = sum(len(summed.intersection(names[:-1])) for kind, names, _, _ in layers if kind == "Convolution")
    fine = sum(node.get_type_name() == "FakeQuantize" and node.get_attributes()["levels"] > 256 for node in model.get_ordered_ops())
    version = str(ov.get_version()).partition("-")[0]
    return described | {"layers": layers, "version": version, "clipped": clipped, "fine": fine}


def _name(item: Any) -> str:
    """Return the same name as the reader."""
    names = sorted(item.get_names())
    return str(names[0] if names else item.get_node().get_friendly_name())


def _sizes(item: Any) -> list[Any]:
    shape = item.get_partial_shape()
    if shape.rank.is_dynamic:
        return []
    return ["?" if size.is_dynamic else size.get_length() for size in shape]


def _read_executed_layers(compiled: Any) -> list[list[Any]]:
    """Return the layers that the CPU plugin executes: type, tensors in the file, whether on integers (None: no arithmetic), kernel."""
    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        known = {key: str(value.value if hasattr(value, "value") else value) for key, value in node.get_rt_info().items()}
        kind, precision = known.get("layerType", ""), known.get("runtimePrecision", "")
        if kind in ("Const", "Input", "Output"):
            continue
        takes = {item.get_element_type().get_type_name() for item in node.inputs()[:1]}  # the precision may be only that of the weights
        integer = None if kind in _CONVERT else precision in _INTEGERS and bool(takes & {"i8", "u8"})
        names = [name for name in known.get("originalLayersNames", "").split(",") if name]
        found.append([kind, names, integer, known.get("primitiveType", "")])
    return found


def _shorten_error(error: Exception) -> str:
    """Return OpenVINO's message without positions in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return f"{type(error).__name__}: {' '.join((told or lines)[:_LINES])}"


def start() -> Callable[..., tuple[dict[str, Any], list[Any]]]:
    """Return what answers questions."""
    import numpy as np
    import openvino as ov

    loaded: list[Any] = []

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], list[Any]]:
        given = [read(dtype, shape).copy() for dtype, shape in question.get("run", ())]
        try:
            if "load" in question:
                model, count, compiled = _compile_model(ov, *question["load"])
                loaded[:] = [compiled.create_infer_request(), count]
                return _describe_model(ov, model, count, compiled, question["entries"]), []
            request, count = loaded
            found = request.infer(dict(enumerate(given)), share_inputs=False, share_outputs=False)
            arrays = [np.array(found[index]) for index in range(count)]
        except Exception as error:  # OpenVINO's errors are RuntimeErrors, and others of its Python package
            return {"error": _shorten_error(error)}, []
        return {"arrays": [[item.dtype.name, list(item.shape)] for item in arrays]}, arrays

    return answer
