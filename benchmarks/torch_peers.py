"""Beside torch.onnx: which quantized PyTorch files each way takes, how far outputs lie from torch's, integer operators, time, memory.

    /path/to/torch/python benchmarks/torch_peers.py FOLDER --qconvert PYTHON [--page FILE.md] FILE ...

FOLDER is what fixtures/make_torch.py made, FILE a path inside it. Each conversion runs in a process of its own: torch.onnx in this
python (it needs torch, onnxscript and onnxruntime), qconvert in the one that is named.
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

WAYS = ("qconvert", "torch.onnx dynamo=True", "torch.onnx dynamo=False")
_QCONVERT = """
import sys, qconvert
qconvert.convert(sys.argv[1], sys.argv[2], **({"input_shape": sys.argv[4]} if sys.argv[1].endswith((".pt", ".ptl")) else {}))
"""
_TORCH = """
import sys, warnings, numpy as np, torch
warnings.simplefilter("ignore")
source, result, values, _, dynamo = sys.argv[1:]
arrays = np.load(values)
shapes = [tuple(map(int, part.split(","))) for part in sys.argv[4].split("; ")]
inputs = tuple(torch.from_numpy(arrays[f"input_{index}"][: shape[0]]) for index, shape in enumerate(shapes))
if source.endswith(".pt2"):
    import torchao
    model = torch.export.load(source)
    model = model if dynamo == "1" else model.module()
else:
    model = torch.jit.load(source)
torch.onnx.export(model, inputs, result, dynamo=dynamo == "1", external_data=False, verbose=False) if dynamo == "1" else torch.onnx.export(
    model, inputs, result, dynamo=False)
"""
_MEMORY = "import resource; print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"


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
    ours = way == "qconvert"
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.onnx"
        code = (_QCONVERT if ours else _TORCH) + _MEMORY
        more = [] if ours else [str(int(way.endswith("True")))]
        command = [python if ours else sys.executable, "-c", code, str(path), str(result), str(path.with_suffix(".npz")), shapes, *more]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        seconds = time.perf_counter() - begin
        if done.returncode or not result.exists():
            lines = [line for line in done.stderr.strip().splitlines() if "Error" in line or "error" in line]
            reason = (lines or ["no file"])[-1].replace("|", "/")[:90]
            return (f"no: {reason}", "", "", f"{seconds:.1f}", "")
        peak = done.stdout.rpartition("peak ")[2].strip()
        return ("yes", _difference(result, path, about), _integers(result), f"{seconds:.1f}", peak)


def _difference(result: Path, path: Path, about: dict[str, Any]) -> str:
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(str(result), providers=["CPUExecutionProvider"])
    arrays = np.load(path.with_suffix(".npz"))
    fed = {item.name: arrays[f"input_{index}"][: about["inputs"][index]["shape"][0]] for index, item in enumerate(session.get_inputs())}
    found = session.run(None, fed)
    parts = [np.abs(value - arrays[f"output_{index}"][: len(value)]).max(initial=0) for index, value in enumerate(found)]
    return f"{max(map(float, parts)):.2g}"


def _integers(result: Path) -> str:
    """Operators of the graph that onnxruntime runs, and those of them that have integer kernels."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(str(result), options, providers=["CPUExecutionProvider"])
        kinds = [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]
    integer = sum("QLinear" in kind or "Integer" in kind or kind == "QGemm" for kind in kinds)
    return f"{integer} of {len(kinds)}"


if __name__ == "__main__":
    main()
