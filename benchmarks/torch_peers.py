"""Next to torch.onnx and litert-torch: quantized PyTorch files that each takes, distance from torch's outputs, integers, time, memory.

    /path/to/torch/python benchmarks/torch_peers.py FOLDER --qconvert PYTHON [--page FILE.md] FILE ...

FOLDER is what fixtures/make_torch.py made, FILE a path inside it. Each conversion runs in a process of its own: the peers in this python
(it needs torch, torchao, onnxscript, onnxruntime and litert-torch), qconvert in the one that is named. litert-torch takes programs of
torch.export alone, with its own quantizer named as the one that made them, as its documentation asks, and with weights that are not
folded (pt2e_xnnpack_unfolded).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_QCONVERT = """
import sys, qconvert
source, result, _, shapes = sys.argv[1:]
qconvert.convert(source, result, **({} if source.endswith(".pt2") else {"input_shape": shapes}))
"""
_LOAD = """
import sys, warnings, numpy as np, torch
warnings.simplefilter("ignore")
source, result, values, shapes = sys.argv[1:]
arrays = np.load(values)
shapes = [tuple(map(int, part.split(","))) for part in shapes.split("; ")]
inputs = tuple(torch.from_numpy(arrays[f"input_{index}"][: shape[0]]) for index, shape in enumerate(shapes))
if source.endswith(".pt2"):
    import torchao, torch.ao.quantization.fx._decomposed
    program = torch.export.load(source)
    model = program.module()
else:
    program = model = torch.jit.load(source)
"""
_DYNAMO = "torch.onnx.export(program, inputs, result, dynamo=True, external_data=False, verbose=False)"
_TRACED = "torch.onnx.export(model, inputs, result, dynamo=False)"
_LITERT = """
import litert_torch
from litert_torch.quantize import pt2e_quantizer, quant_config
quantizer = pt2e_quantizer.PT2EQuantizer().set_global(pt2e_quantizer.get_symmetric_quantization_config(is_per_channel=True))
litert_torch.convert(model, inputs, quant_config=quant_config.QuantConfig(pt2e_quantizer=quantizer)).export(result)
"""
_MEMORY = "\nimport resource; print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
#: Each way by its name: what it writes, and its program.
WAYS = {
    "qconvert": (".onnx", _QCONVERT),
    "torch.onnx dynamo=True": (".onnx", _LOAD + _DYNAMO),
    "torch.onnx dynamo=False": (".onnx", _LOAD + _TRACED),
    "qconvert to TFLite": (".tflite", _QCONVERT),
    "litert-torch": (".tflite", _LOAD + _LITERT),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--qconvert", required=True)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    lines = ["| file | way | accepted | largest difference | operators on integers | seconds | MB |", "|---|---|---|---|---|---|---|"]
    for name in options.files:
        for way in WAYS:
            lines.append(f"| {name} | {way} | {' | '.join(_row(options.folder / name, way, options.qconvert))} |")
            print(lines[-1], flush=True)
    if options.page:
        options.page.write_text("\n".join(lines) + "\n")


def _row(path: Path, way: str, python: str) -> tuple[str, ...]:
    about = json.loads(path.with_suffix(".json").read_text())
    shapes = "; ".join(",".join(map(str, item["shape"])) for item in about["inputs"])
    suffix, code = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / f"result{suffix}"
        program = python if code == _QCONVERT else sys.executable
        command = [program, "-c", code + _MEMORY, str(path), str(result), str(path.with_suffix(".npz")), shapes]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        seconds = time.perf_counter() - begin
        if done.returncode or not result.exists():
            lines = [line for line in done.stderr.strip().splitlines() if "Error" in line or "error" in line]
            reason = (lines or ["no file"])[-1].replace("|", "/")[:90]
            return (f"no: {reason}", "", "", f"{seconds:.1f}", "")
        peak = done.stdout.rpartition("peak ")[2].strip()
        difference, integers = (_in_onnxruntime if suffix == ".onnx" else _in_litert)(result, path, about)
        return ("yes", difference, integers, f"{seconds:.1f}", peak)


def _in_onnxruntime(result: Path, path: Path, about: dict[str, Any]) -> tuple[str, str]:
    """The largest difference from torch's outputs; operators of the graph that onnxruntime runs that have integer kernels, of all."""
    import numpy as np
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(result.with_name("optimized.onnx"))
    session = onnxruntime.InferenceSession(str(result), options, providers=["CPUExecutionProvider"])
    arrays = np.load(path.with_suffix(".npz"))
    fed = {item.name: arrays[f"input_{index}"][: about["inputs"][index]["shape"][0]] for index, item in enumerate(session.get_inputs())}
    kinds = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    integer = sum("QLinear" in kind or "Integer" in kind or kind == "QGemm" for kind in kinds)
    return _difference(session.run(None, fed), arrays), f"{integer} of {len(kinds)}"


def _in_litert(result: Path, path: Path, about: dict[str, Any]) -> tuple[str, str]:
    """Likewise in LiteRT; integer operators are those that take and give integers."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(result), num_threads=1)
    arrays = np.load(path.with_suffix(".npz"))
    for index, item in enumerate(interpreter.get_input_details()):
        value = arrays[f"input_{index}"][: about["inputs"][index]["shape"][0]]
        interpreter.resize_tensor_input(item["index"], value.shape)
        interpreter.allocate_tensors()
        scale, zero_point = item["quantization"]
        limits = np.iinfo(item["dtype"]) if scale else None
        stored = np.clip(np.round(value / scale) + zero_point, limits.min, limits.max) if limits else value
        interpreter.set_tensor(item["index"], stored.astype(item["dtype"]))
    interpreter.invoke()
    found = [_real(interpreter.get_tensor(item["index"]), item["quantization"]) for item in interpreter.get_output_details()]
    types = {item["index"]: np.dtype(item["dtype"]).kind for item in interpreter.get_tensor_details()}
    operators = [op for op in interpreter._get_ops_details() if op["op_name"] != "DELEGATE"]
    integer = sum(all(types.get(int(op[side][0])) in ("i", "u") for side in ("inputs", "outputs")) for op in operators)
    return _difference(found, arrays), f"{integer} of {len(operators)}"


def _real(stored: Any, quantization: tuple[float, int]) -> Any:
    """Stored values as the real ones, which PyTorch's outputs are."""
    return (stored.astype("float64") - quantization[1]) * quantization[0] if quantization[0] else stored


def _difference(found: list[Any], arrays: Any) -> str:
    import numpy as np

    expected = [arrays[f"output_{index}"] for index in range(len(found))]
    if any(value.shape[1:] != own.shape[1:] for value, own in zip(found, expected, strict=True)):
        return "outputs of other shapes"
    parts = [np.abs(value - own[: len(value)]).max(initial=0) for value, own in zip(found, expected, strict=True)]
    return f"{max(map(float, parts)):.2g}"


if __name__ == "__main__":
    main()
