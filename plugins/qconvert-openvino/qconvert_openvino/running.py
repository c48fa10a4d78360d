"""A model in OpenVINO's CPU plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qconvert.plugin import STATES, Array, Layer, ModelFile, RuntimeRefusedError, StatefulModel, runtime_package
from qconvert_openvino.elements import DTYPES

#: Layers without arithmetic: they change types, sizes or layouts.
_CONVERT = frozenset(("Convert", "Reorder", "Reshape", "Transpose", "FakeQuantize", "Input", "Output", "Const"))
_INTEGERS = ("i8", "u8", "I8", "U8")


class OpenVinoModel(StatefulModel):
    """A model that OpenVINO has compiled for this machine's CPU.

    Attributes:
        inputs: name -> (dtype, shape), in order; a dynamic dimension is a text. States are left out.
        outputs: likewise.
        note: the version of OpenVINO, and the number of layers on integers.

    Raises:
        MissingPackageError: OpenVINO is not installed.
        RuntimeRefusedError: it does not take the model.
    """

    def __init__(self, file: ModelFile) -> None:
        model, count, self._compiled = _compile_model(file)
        self._request = self._compiled.create_infer_request()
        # In the compiled model equal values share their names.
        own = [_name(item) for item in model.inputs], [_name(item) for item in model.outputs[:count]]
        names = [stated if len(stated) == len(found) else found for stated, found in zip(_read_onnx_names(file), own, strict=True)]
        sides = (
            {name: (_dtype(item), _sizes(item)) for name, item in zip(called, side, strict=True)}
            for called, side in zip(names, (self._compiled.inputs, self._compiled.outputs[:count]), strict=True)
        )
        super().__init__(_states_of(model), *sides)
        try:
            self.note = _note(model, _read_executed_layers(self._compiled))
        except RuntimeRefusedError as error:
            self.note = error.reason

    def compute(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute all outputs, stored values by name."""
        try:
            fed = [np.array(values[name], dtype, order="C") for name, (dtype, _) in self.network_inputs.items()]
            found = self._request.infer(dict(enumerate(fed)), share_inputs=False, share_outputs=False)
            return {name: np.array(found[index]) for index, name in enumerate(self.network_outputs)}
        except Exception as error:  # OpenVINO's errors are RuntimeErrors, and others of its Python package
            raise RuntimeRefusedError(f"OpenVINO failed while running the model: {_shorten_error(error)}", rule="run-failed") from error


def _compile_model(file: ModelFile) -> tuple[Any, int, Any]:
    """Return the openvino.Model of a file, its number of outputs, and the model that the CPU plugin has compiled.

    float32 is requested, since the plugin would use bfloat16 on CPUs that support it. The kernels "unfused" make the operands of sums
    outputs, so that the plugin rounds them.
    """
    ov = runtime_package("openvino", "openvino", "runs OpenVINO models")
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "CACHE_DIR": ""}
    if file.threads:
        settings["INFERENCE_NUM_THREADS"] = file.threads
    if file.kernels == "real":
        settings |= {"LP_TRANSFORMS_MODE": False, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    try:
        core = ov.Core()
        model = core.read_model(str(file.path))
        count = len(model.outputs)
        if file.kernels == "unfused":
            model.add_outputs([(name, 0) for name in _find_sum_operands(model)])
        return model, count, core.compile_model(model, "CPU", settings)
    except Exception as error:  # as above
        remedy = "Check it in another runtime, such as --kernels onnxruntime." if file.path.suffix == ".onnx" else ""
        raise RuntimeRefusedError(
            f"OpenVINO does not load the model: {_shorten_error(error)}", file=str(file.path), remedy=remedy, rule="runtime-refused-model"
        ) from error


def _find_sum_operands(model: Any) -> list[str]:
    """Return the names of FakeQuantizes that an Add reads."""
    found = []
    for node in model.get_ordered_ops():
        readers = node.output(0).get_target_inputs() if node.get_type_name() == "FakeQuantize" else ()
        if any(reader.get_node().get_type_name() == "Add" for reader in readers):
            found.append(str(node.get_friendly_name()))
    return found


def _note(model: Any, executed: list[Layer]) -> str:
    """Describe a run: the version of OpenVINO, the number of layers on integers, and the roundings that it skips."""
    found = [layer for layer in executed if layer.integer is not None]
    count = sum(layer.integer is True for layer in found)
    summed = {*_find_sum_operands(model)}
    clipped = sum(len(summed.intersection(layer.outputs[:-1])) for layer in executed if layer.type == "Convolution")
    from openvino import get_version

    version = get_version().partition("-")[0]
    rounding = f"; {clipped} sums take what a convolution computed without rounding it, only clipped to its range" if clipped else ""
    fine = sum(node.get_type_name() == "FakeQuantize" and node.get_attributes()["levels"] > 256 for node in model.get_ordered_ops())
    rounding += f"; {fine} FakeQuantizes of more than 256 levels are left out, with their clipping" if fine else ""
    return f"OpenVINO {version} ran {count} of {len(found)} layers on integers, the others in float32{rounding}"


def _read_onnx_names(file: ModelFile) -> tuple[list[str], list[str]]:
    """Return the names of an ONNX file's inputs and outputs: in OpenVINO equal values share their names."""
    if file.path.suffix.lower() == ".xml":
        return [], []
    import onnx

    graph = onnx.load(str(file.path), load_external_data=False).graph
    given = {item.name for item in graph.initializer}
    return [item.name for item in graph.input if item.name not in given], [item.name for item in graph.output]


def _name(item: Any) -> str:
    """Return the same name as the reader."""
    names = sorted(item.get_names())
    return str(names[0] if names else item.get_node().get_friendly_name())


def _dtype(item: Any) -> str:
    own = item.get_element_type().get_type_name()
    return DTYPES.get(own, str(own))


def _sizes(item: Any) -> tuple[Any, ...]:
    shape = item.get_partial_shape()
    if shape.rank.is_dynamic:
        return ()
    return tuple("?" if size.is_dynamic else size.get_length() for size in shape)


def _states_of(model: Any) -> str | None:
    """Return the metadata entry of states: qconvert's, or ONNX's."""
    from qconvert_openvino.container import Notes

    texts = {}
    for place in (["qconvert", "metadata"], ["framework", STATES]):
        if model.has_rt_info(place):
            texts[place[-1]] = str(model.get_rt_info(place).value)
    return texts.get(STATES) or Notes.of(texts).metadata.get(STATES)


def layers(file: ModelFile) -> tuple[Layer, ...]:
    """Return the layers that the CPU plugin executes, in order, each with its tensors in the file."""
    return tuple(_read_executed_layers(_compile_model(file)[2]))


def _read_executed_layers(compiled: Any) -> list[Layer]:
    try:
        model = compiled.get_runtime_model()
    except Exception as error:  # as above; of 16-bit data
        raise RuntimeRefusedError(
            f"OpenVINO does not state how it runs the model: {_shorten_error(error)}", rule="layers-not-stated"
        ) from error
    found = []
    for node in model.get_ordered_ops():
        known = {key: str(value.value if hasattr(value, "value") else value) for key, value in node.get_rt_info().items()}
        kind, precision = known.get("layerType", ""), known.get("runtimePrecision", "")
        if kind in ("Const", "Input", "Output"):
            continue
        takes = {item.get_element_type().get_type_name() for item in node.inputs()[:1]}  # the precision may be only that of the weights
        integer = None if kind in _CONVERT else precision in _INTEGERS and bool(takes & {"i8", "u8"})
        names = tuple(name for name in known.get("originalLayersNames", "").split(",") if name)
        found.append(Layer(kind, names, integer, known.get("primitiveType", "")))
    return found


def _shorten_error(error: Exception) -> str:
    """Return OpenVINO's message without positions in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return " ".join((told or lines)[:4])
