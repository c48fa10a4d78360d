"""ONNX files in clients that qconvert has no runtime for: do they take them, and do they compute what onnxruntime computes?

    python -m venv iree && iree/bin/pip install iree-base-compiler iree-base-runtime onnx
    python -m venv tract && tract/bin/pip install tract onnx
    python -m venv qnn && qnn/bin/pip install onnxruntime-qnn onnxruntime onnx
    pip install ./plugins/qconvert-qnn  # for HTP's own target
    python benchmarks/clients.py --client iree=iree/bin/python --client tract=tract/bin/python --client qnn=qnn/bin/python \\
        [--targets ort-x86,portable] [--limit 120] [--markdown docs/measured/clients.md] [MODEL …]

Each model is converted for each target with a batch of 1 and run once in onnxruntime on random inputs; each client runs the file in its
own environment, in a process with a time limit. "equal" is every element of all outputs; of float outputs, within 1e-6 of their range.
"1 step" is a difference of one integer, or of 1/255 of a float output's range. HTP is Qualcomm's Hexagon Tensor Processor, whose arithmetic
the x86 library of onnxruntime-qnn runs, for an SM8650; the whole model has to run on it, without falling back to the CPU, but for the
conversions of float inputs and outputs. Of a client with a target of its own (qnn-htp) that is tried too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS = (
    *("tiny_kws_dscnn_int8 tiny_resnet_cifar10_int8 tiny_vww_mobilenet_int8 tiny_ad_toycar_int8 tiny_wakeword_int8 aww_int8"
      " tflm_person_detect_int8 coral_mobilenet_v1_025_128_uint8 coral_mobilenet_v2_224_uint8 coral_tf2_mobilenet_v2_224_int8"
      " tflm_mobilenet_v2_from_torch_int8 coral_deeplabv3_mnv2_dm05_uint8 coco_ssd_mobilenet_v1_uint8 coral_lstm_mnist_int8"
      " mww_okay_nabu_streaming_int8 tflm_seanet_conv_int16x8 tflm_keyword_svdf_int8").split(),
    *("onnx/torch_mobilenet_v2_qdq onnx/torch_fx_fbgemm_vision onnx/torch_fx_qnnpack_vision onnx/torch_pt2e_xnnpack_vision"
      " onnx/torch_fx_fbgemm_attention onnx/torch_pt2e_xnnpack_attention onnx/modelopt_ptq_vision onnx/brevitas_int8"
      " onnx/micro_kws_m_static_qdq").split(),
)  # fmt: skip
TITLES = {"iree": "IREE", "tract": "tract", "qnn": "HTP"}
OWN = {"qnn": "qnn-htp"}  # targets of clients
PACKAGES = {"iree": "iree-base-compiler", "tract": "tract", "qnn": "onnxruntime-qnn"}
Outputs = Sequence[Any]


def run_iree(file: str, inputs: Mapping[str, Any]) -> Outputs:
    import iree.compiler as compiler
    import iree.runtime as runtime

    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "m.mlir")
        importer = os.path.join(os.path.dirname(sys.executable), "iree-import-onnx")
        subprocess.run([importer, file, "-o", text], check=True, capture_output=True)
        code = compiler.compile_file(text, target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"])
    config = runtime.Config("local-task")
    module = runtime.VmModule.copy_buffer(config.vm_instance, code)
    context = runtime.SystemContext(config=config)
    context.add_vm_module(module)
    name = next(name for name in module.function_names if "$" not in name)
    found = context.modules[module.name][name](*inputs.values())
    return [item.to_host() for item in (found if isinstance(found, (tuple, list)) else [found])]


def run_tract(file: str, inputs: Mapping[str, Any]) -> Outputs:
    import tract

    model = tract.onnx().load(file).into_model().into_runnable()
    return [item.to_numpy() for item in model.run([np.ascontiguousarray(value) for value in inputs.values()])]


def run_qnn(file: str, inputs: Mapping[str, Any]) -> Outputs:
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name.startswith("QNN")]
    options.add_provider_for_devices(devices[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "htp_arch": "75", "soc_model": "57"})
    session = onnxruntime.InferenceSession(file, options)
    parts = [part for part in session.get_provider_graph_assignment_info() if not part.ep_name.startswith("QNN")]
    left = {node.op_type for part in parts for node in part.get_nodes()} - {"QuantizeLinear", "DequantizeLinear"}
    if left:
        raise RuntimeError(f"error: on the CPU: {', '.join(sorted(left))}")
    found: Outputs = session.run(None, dict(inputs))
    return found


CLIENTS: Mapping[str, Callable[[str, Mapping[str, Any]], Outputs]] = {"iree": run_iree, "tract": run_tract, "qnn": run_qnn}


def as_client(client: str, file: str, arrays: str) -> None:
    """In the client's environment: runs a file, and prints what came of it as the last line."""
    given = np.load(arrays)
    inputs = {name[3:]: given[name] for name in given.files if name.startswith("in/")}
    wanted = [given[name] for name in given.files if name.startswith("out/")]
    try:
        found = [np.asarray(item) for item in CLIENTS[client](file, inputs)]
        print(json.dumps({"ran": compared(wanted, found)}))
    except Exception as error:  # whatever a client raises is what came of it
        said = getattr(error, "stderr", b"") or str(error)
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        lines = [line for word in ("error:", "rror") for line in text.splitlines() if word in line] or text.splitlines()
        lines = lines or [type(error).__name__]
        print(json.dumps({"refused": " ".join(re.sub(r"/\S*/", "", lines[0]).split())[:200]}))


def compared(wanted: Outputs, found: Outputs) -> str:
    """In words, how the outputs differ."""
    worst = 0.0
    for one, other in zip(wanted, found, strict=True):
        if one.dtype != other.dtype and one.dtype.itemsize == other.dtype.itemsize and one.dtype.kind in "iu":
            other = other.view(one.dtype)  # IREE's integers have no sign
        if one.shape != other.shape:
            return f"shape {other.shape}, not {one.shape}"
        if one.dtype.kind == "f":
            limit, step = 1e-6, max(float(np.ptp(one)) / 255, 1e-9) if one.size else 1.0
        else:
            limit, step = 0.0, 1.0
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0)
        if not np.isfinite(difference):
            return "not finite"
        worst = max(worst, 0.0 if difference <= limit * max(float(np.ptp(one)), 1e-9) else difference / step)
    return "equal" if worst == 0 else "1 step" if worst <= 1 else f"{worst:.0f} steps" if worst >= 1.5 else "2 steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--client", action="append", required=True, help="NAME=PYTHON, the interpreter of its environment; repeatable")
    parser.add_argument("--targets", default="ort-x86,portable")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one file in one client")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("models", nargs="*", type=Path)
    given = parser.parse_args()
    import qconvert.plugins

    clients = dict(item.split("=", 1) for item in given.client)
    models = given.models or [next(FIXTURES.glob(f"{name}.*")) for name in MODELS]
    targets = given.targets.split(",")
    own = {OWN[name]: {name: python} for name, python in clients.items() if OWN.get(name) in qconvert.plugins.targets()}
    columns = [*((target, clients) for target in targets), *own.items()]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            row = [model.stem]
            for target, users in columns:
                row += outcomes(model, target, users, given.limit, Path(folder))
            rows.append(row)
            print(" | ".join(row), flush=True)
    heads = ["model", *(f"{TITLES[client]}, {target}" for target, users in columns for client in users)]
    table = ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows)]
    counts = [
        f"- {head}: {sum(row[place] == 'equal' for row in rows)} equal, {sum(row[place] == '1 step' for row in rows)} within one step, "
        f"{sum('steps' in row[place] or 'shape' in row[place] for row in rows)} otherwise, "
        f"{sum(row[place].startswith('no') for row in rows)} not taken, of {len(rows)}"
        for place, head in enumerate(heads)
        if place
    ]
    print("\n".join(counts))
    if given.markdown:
        versions = ", ".join(f"{PACKAGES[name]} {version_of(python, name)}" for name, python in clients.items())
        words = (__doc__ or "").rpartition("\n\n")[2].strip().replace("\n", " ")
        body = f"# Other clients of ONNX\n\n`python benchmarks/clients.py`: {versions}. {words}\n\n"
        given.markdown.write_text(body + "\n".join(counts) + "\n\n" + "\n".join(table) + "\n")


def outcomes(model: Path, target: str, clients: Mapping[str, str], limit: float, folder: Path) -> list[str]:
    """What came of a model's conversion for a target in each client."""
    import onnxruntime

    import qconvert
    from qconvert.data import random_inputs

    file, arrays = folder / f"{model.stem}.onnx", folder / "arrays.npz"
    graph = qconvert.load(model)
    dynamic = any(isinstance(size, str) for name in graph.inputs for size in graph[name].shape or ())
    try:
        qconvert.convert(model, file, target=target, force=True, **({"batch": 1} if dynamic else {}))
    except qconvert.QConvertError as error:
        return [f"no: {' '.join(error.reason.split())[:80]}"] * len(clients)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = random_inputs(qconvert.load(file), 1, 0)[0]
    first = {item.name: np.zeros(item.shape, item.type[7:-1].replace("float", "float32")) for item in session.get_inputs()}
    feed = {name: feed.get(name, value) for name, value in first.items()}
    outputs = {f"out/{place}": value for place, value in enumerate(session.run(None, feed))}
    np.savez(arrays, **{f"in/{name}": value for name, value in feed.items()}, **outputs)
    return [outcome(name, python, file, arrays, limit) for name, python in clients.items()]


def outcome(client: str, python: str, file: Path, arrays: Path, limit: float) -> str:
    line = [python, __file__, "--as", client, str(file), str(arrays)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"no: longer than {limit:.0f} s"
    except (ValueError, IndexError):
        return "no: the process ended"
    return str(found["ran"]) if "ran" in found else f"no: {found['refused'][:80]}".replace("|", "/")


def version_of(python: str, client: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({PACKAGES[client]!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        as_client(*sys.argv[2:])
    else:
        main()
