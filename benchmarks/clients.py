"""Files in clients that qconvert has no runtime for, and in older runtimes: do they take them, and compute what today's runtimes compute?

    python -m venv iree && iree/bin/pip install iree-base-compiler iree-base-runtime onnx
    python -m venv tract && tract/bin/pip install tract onnx
    python -m venv qnn && qnn/bin/pip install onnxruntime-qnn onnxruntime onnx
    pip install ./plugins/qconvert-qnn ./plugins/qconvert-ethos  # for HTP's own target, and for Vela
    python benchmarks/clients.py --client iree=iree/bin/python --client tract=tract/bin/python --client qnn=qnn/bin/python \\
        --npus ethos-u55-128,ethos-u65-256,ethos-u85-256 \\
        [--targets ort-x86,portable] [--limit 120] [--results FOLDER] [--markdown docs/measured/clients.md] [MODEL …]
    python benchmarks/clients.py --client onnxruntime@1.17=ort117/bin/python --client tflite-runtime@2.14=tfl214/bin/python \\
        --client litert@1.4=litert14/bin/python --explain "" --markdown docs/measured/older_runtimes.md

Each model is converted for each target with a batch of 1 and run once in onnxruntime, as .tflite in LiteRT, on random inputs; each client
runs the file in its own environment, in a process with a time limit. "equal" is every element of all outputs; of float outputs, within 1e-6
of their range. "1 step" is a difference of one integer, of the scale of a float output that is dequantized, or of 1/255 of another float
output's range, or of a single value; "4 of 65,536 steps" is one of 4 in outputs of 16 bits. HTP is Qualcomm's Hexagon Tensor Processor,
whose arithmetic the x86 library of onnxruntime-qnn runs, for an SM8650; the whole model has to run on it, without falling back to the CPU,
but for the conversions of float inputs and outputs; "67% on it" is the share of operators that does. A client with a target of its own
(qnn-htp) is tried with that in place of portable. Where more than a step differs, or a file is not taken, each kind of operator is cut out
of it and run alone; those that are wrong alone too stand in brackets. "noise 41 to 71" is how far onnxruntime's own outputs are off where
2% of the results of its convolutions, products and sums, drawn at random four times, are a step higher or lower: a network which they move
as far says little of a client. Milliseconds are processor time of the best run, on one thread. HTP has none, since its library for x86
simulates it. Vela compiles what is converted for each Ethos-U, and estimates the NPU's cycles, its time and its memory; it runs nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
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
ONNXRUNTIME = "onnxruntime, portable"
OWN = {"qnn": "qnn-htp", "litert": "tflite", "tflite-runtime": "tflite"}  # targets of clients
WHOLE = "model"  # the stem of that among the files that a client is given
SUFFIXES = (".onnx", ".tflite")
Outputs = Sequence[Any]
Run = Callable[[Mapping[str, Any]], Outputs]
#: Seconds of processor time for which runs are timed, and how many there are at most.
TIMED, RUNS = 0.5, 30


def open_iree(file: str) -> Run:
    import iree.compiler as compiler
    import iree.runtime as runtime

    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "m.mlir")
        importer = os.path.join(os.path.dirname(sys.executable), "iree-import-onnx")
        subprocess.run([importer, file, "-o", text], check=True, capture_output=True)
        code = compiler.compile_file(text, target_backends=["llvm-cpu"], extra_args=["--iree-llvmcpu-target-cpu=host"])
    config = runtime.Config("local-sync")
    module = runtime.VmModule.copy_buffer(config.vm_instance, code)
    context = runtime.SystemContext(config=config)
    context.add_vm_module(module)
    function = context.modules[module.name][next(name for name in module.function_names if "$" not in name)]

    def run(inputs: Mapping[str, Any]) -> Outputs:
        found = function(*inputs.values())
        return [np.array(item.to_host()) for item in (found if isinstance(found, (tuple, list)) else [found])]  # to_host() gives views

    return run


def open_tract(file: str) -> Run:
    import tract

    model = tract.onnx().load(file).into_model().into_runnable()
    return lambda inputs: [item.to_numpy() for item in model.run([np.ascontiguousarray(value) for value in inputs.values()])]


def open_qnn(file: str) -> Run:
    import onnxruntime
    import onnxruntime_qnn

    if not any(device.ep_name.startswith("QNN") for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name.startswith("QNN")]
    options.add_provider_for_devices(devices[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "htp_arch": "75", "soc_model": "57"})
    session = onnxruntime.InferenceSession(file, options)
    parts = [
        (part.ep_name.startswith("QNN"), node.op_type) for part in session.get_provider_graph_assignment_info() for node in part.get_nodes()
    ]
    parts = [part for part in parts if part[1] not in ("QuantizeLinear", "DequantizeLinear")]
    left = {kind for is_on_it, kind in parts if not is_on_it}
    if left:
        share = sum(is_on_it for is_on_it, _ in parts) / len(parts)
        raise RuntimeError(f"error: {share:.0%} on it, on the CPU: {', '.join(sorted(left))}")
    return lambda inputs: session.run(None, dict(inputs))


def open_session(file: str) -> Run:
    session = open_onnxruntime(file)
    return lambda inputs: session.run(None, dict(inputs))


def open_tflite(file: str, module: str = "ai_edge_litert.interpreter") -> Run:
    interpreter = importlib.import_module(module).Interpreter(model_path=file, num_threads=1)
    interpreter.allocate_tensors()

    def run(inputs: Mapping[str, Any]) -> Outputs:
        for item in interpreter.get_input_details():
            interpreter.set_tensor(item["index"], inputs[item["name"]])
        interpreter.invoke()
        return [interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()]

    return run


@dataclass(frozen=True, slots=True)
class Client:
    """A program that runs files.

    Attributes:
        title: in tables.
        package: of which the version is stated.
        open: file -> what runs it.
    """

    title: str
    package: str
    open: Callable[[str], Run]


CLIENTS = {
    "iree": Client("IREE", "iree-base-compiler", open_iree),
    "tract": Client("tract", "tract", open_tract),
    "qnn": Client("HTP", "onnxruntime-qnn", open_qnn),
    "onnxruntime": Client("onnxruntime", "onnxruntime", open_session),
    "litert": Client("LiteRT", "ai-edge-litert", open_tflite),
    "tflite-runtime": Client("TFLite", "tflite-runtime", partial(open_tflite, module="tflite_runtime.interpreter")),
}
#: Operators of whose results clients round some to the other neighbour.
NOISY = ("Add", "Conv", "ConvTranspose", "Gemm", "MatMul", "Mul")
#: Types of quantized data, at which a file is cut into operators.
STORED = ("INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16")
SIMULATORS = ("qnn",)  # whose time says nothing


def as_client(client: str, folder: str) -> None:
    """In the client's environment: run the files of a folder, and print what came of each as a line of JSON."""
    for file in model_files(Path(folder)):
        given = np.load(file.with_suffix(".npz"))
        inputs = {name[3:]: given[name] for name in given.files if name.startswith("in/")}
        wanted = [given[name] for name in given.files if name.startswith("out/")]
        milliseconds = None
        try:
            run = client_of(client).open(str(file))
            outcome = compared(wanted, [np.asarray(item) for item in run(inputs)], given["scales"])
            if file.stem == WHOLE and client not in SIMULATORS:
                milliseconds = time_runs(run, inputs)
        except Exception as error:  # whatever a client raises is what came of it
            outcome = f"no: {shorten(error)}"
        print(json.dumps({"file": file.name, "outcome": outcome, "milliseconds": milliseconds}), flush=True)


def client_of(name: str) -> Client:
    """Return the client of a name; "@" and a version follow where several versions are tried."""
    return CLIENTS[name.partition("@")[0]]


def title_of(name: str) -> str:
    return " ".join([client_of(name).title, *name.split("@")[1:]])


def model_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)


def time_runs(run: Run, inputs: Mapping[str, Any]) -> float:
    """Return the processor time of the fastest of several runs, in milliseconds."""
    begun, times = time.process_time(), list[float]()
    while not times or (time.process_time() - begun < TIMED and len(times) < RUNS):
        before = time.process_time()
        run(inputs)
        times.append(time.process_time() - before)
    return 1000 * min(times)


def shorten(error: Exception) -> str:
    """Return the line of a client's error that says why, without names of nodes, numbers of lines and sizes."""
    said = getattr(error, "stderr", b"") or str(error)
    text = (said.decode(errors="replace") if isinstance(said, bytes) else said).partition("Stack backtrace")[0]
    lines = [line for line in text.splitlines() if line.strip() and "ModelPatch {" not in line]
    causes = lines[-1:] if "Caused by" in text else [line for word in ("error:", "rror") for line in lines if word in line] or lines
    line = re.sub(
        r"/\S*/|Node '[^']*' |^\s*\d+: |\S*mlir:[\d:]* |(?:\d+,)+(?=[A-Z])|#\d+ |\"[^\"]*\" ", "", (causes or [type(error).__name__])[0]
    )
    return " ".join(line.split())[:160]


def compared(wanted: Outputs, found: Outputs, scales: Sequence[float]) -> str:
    """In words, how the outputs differ."""
    found = [other.view(one.dtype) if one.dtype.kind in "iu" and one.itemsize == other.itemsize else other
             for one, other in zip(wanted, found, strict=True)]  # IREE's integers have no sign  # fmt: skip
    for one, other in zip(wanted, found, strict=True):
        if one.shape != other.shape:
            return f"shape {other.shape}, not {one.shape}"
    steps = compare_steps(wanted, found, scales)
    if not np.isfinite(steps):
        return "not finite"
    unit = " of 65,536" if any(one.dtype.kind in "iu" and one.itemsize == 2 for one in wanted) else ""
    return "equal" if steps == 0 else "1 step" if steps < 1.001 else f"{max(steps, 2):.0f}{unit} steps"


def compare_steps(wanted: Outputs, found: Outputs, scales: Sequence[float]) -> float:
    """Return by how many steps outputs of the same shapes differ at most; see scales_of()."""
    worst = 0.0
    for one, other, scale in zip(wanted, found, scales, strict=True):
        if one.dtype.kind == "f":
            width = float(np.ptp(one) or np.abs(one).max()) if one.size else 0.0
            limit, step = 1e-6 * width, max(width / 255, float(scale), 1e-9)
        else:
            limit, step = 0.0, 1.0
        difference = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))
        if not difference <= max(limit, 1e-15):
            worst = max(worst, difference / step) if np.isfinite(difference) else difference
    return worst


@dataclass(frozen=True, slots=True)
class Cause:
    """What a client does with one operator alone.

    Attributes:
        kinds: of the operators of the smallest file that shows it.
        outcome: what came of that file.
        nodes: of that file.
    """

    kinds: str
    outcome: str
    nodes: int


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a model in a client: of its file for a target, and of those of its operators alone that the client gets wrong.

    Attributes:
        file: a digest of that file, or why there is none; of other files the outcome says nothing.
    """

    model: str
    head: str
    file: str
    outcome: str
    causes: tuple[Cause, ...] = ()
    milliseconds: float | None = None

    @classmethod
    def from_json(cls, line: str) -> Found:
        item = json.loads(line)
        causes = tuple(Cause(*cause) for cause in item["causes"])
        return cls(**{**item, "causes": causes})

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "causes": [[*asdict(cause).values()] for cause in self.causes]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--client",
        action="append",
        required=True,
        help="NAME[@VERSION]=PYTHON, of its environment; repeatable",
    )
    parser.add_argument("--targets", default="ort-x86,portable", help="a client with a target of its own has that in place of portable")
    parser.add_argument(
        "--explain", default="ort-x86,portable,qnn-htp", help="targets whose files are cut into operators where a client is wrong"
    )
    parser.add_argument("--npus", default="", help="names as Vela's --accelerator-config has them, such as ethos-u55-128")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one file in one client")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--results", type=Path, help="a folder for the smallest files, and for outcomes, which the same conversions keep")
    parser.add_argument("models", nargs="*", type=Path)
    given = parser.parse_args()
    import qconvert.plugins

    clients = dict(item.split("=", 1) for item in given.client)
    are_older = all("@" in name for name in clients)
    models = [path.resolve() for path in given.models] or [next(FIXTURES.glob(f"{name}.*")) for name in MODELS]
    own: dict[str, dict[str, str]] = {}
    for name, python in clients.items():
        if (target := OWN.get(name.partition("@")[0], "")) in qconvert.plugins.targets():
            own.setdefault(target, {})[name] = python
    others = {name: python for name, python in clients.items() if not any(name in users for users in own.values())}
    of_onnx = {name: python for name, python in clients.items() if name not in own.get("tflite", {})}
    columns = [*((target, others if target == "portable" else of_onnx) for target in given.targets.split(",")), *own.items()]
    columns = [(target, users) for target, users in columns if users]
    heads = [f"{title_of(client)}, {target}" for target, users in columns for client in users]
    results = given.results or Path(tempfile.mkdtemp())
    results.mkdir(parents=True, exist_ok=True)
    lines = results / "outcomes.jsonl"
    known = {(item.model, item.head): item for item in map(Found.from_json, lines.read_text().splitlines() if lines.exists() else ())}
    npus, speeds = [npu for npu in given.npus.split(",") if npu], [ONNXRUNTIME, *(head for head in heads if head.endswith("portable"))]
    speeds = [head for head in speeds if head.partition(",")[0] not in {title_of(client) for client in SIMULATORS}]
    rows, fast = [], []
    for model in models:
        name = model.stem if model.is_relative_to(FIXTURES) else f"{model.parent.name}/{model.stem}"
        for target, users in columns:
            with tempfile.TemporaryDirectory() as folder:
                kept = results if target in given.explain.split(",") else None
                for item in outcomes(model, name, target, users, known, given.limit, Path(folder), kept):
                    known[name, item.head] = item
                    with lines.open("a") as file:
                        file.write(item.to_json() + "\n")
        for npu in npus:
            if (name, npu) not in known:
                with tempfile.TemporaryDirectory() as folder:
                    known[name, npu] = item = Found(name, npu, "", place_converted(model, npu, Path(folder)))
                with lines.open("a") as file:
                    file.write(item.to_json() + "\n")
        rows.append([known[name, head] for head in heads])
        times = [known[name, head].milliseconds if (name, head) in known else None for head in speeds]
        fast.append([name, *("" if item is None else f"{item:.3g}" for item in times), *(known[name, npu].outcome for npu in npus)])
        print(f"{name} | " + " | ".join([*(show(item) for item in rows[-1]), *fast[-1][1:]]), flush=True)
    page = [*count_outcomes(heads, rows), "", *table_of(["model", *heads], [[row[0].model, *map(show, row)] for row in rows])]
    if not are_older:
        page += ["", "Milliseconds of a run, and Vela's estimates:", "", *table_of(["model", *speeds, *npus], fast)]
    causes: dict[tuple[str, str, str], list[Cause]] = {}
    for item in (item for row in rows for item in row):
        for cause in item.causes:
            causes.setdefault((item.head, cause.kinds, "steps" if cause.outcome.endswith("steps") else cause.outcome), []).append(cause)
    if causes:
        page += ["", "Operators alone, cut out of those files, that a client does not take or gets wrong by more than a step:", ""]
        shown = [[*key[:2], worst(found), str(len(found)), str(min(item.nodes for item in found))] for key, found in causes.items()]
        page += table_of(["client", "operators", "what came of it", "models", "nodes of the smallest file"], sorted(shown))
    print("\n".join(page))
    if given.markdown:
        versions = ", ".join(f"{client_of(name).package} {version_of(python, name)}" for name, python in clients.items())
        ours = ["onnxruntime", *["ai-edge-litert"][: "tflite" in own], *["ethos-u-vela"][: len(npus)]]
        versions += "; compared with " + ", ".join(f"{name} {version(name)}" for name in ours)
        words = (__doc__ or "").rpartition("\n\n")[2].strip().replace("\n", " ")
        title = "Older runtimes" if are_older else "Other clients of ONNX"
        title += "" if any(path.is_relative_to(FIXTURES) for path in models) else ", models of the zoo"
        body = f"# {title}\n\n`python benchmarks/clients.py`: {versions}. {words}\n\n"
        given.markdown.write_text(body + "\n".join(page) + "\n")


def show(item: Found) -> str:
    """Return the cell of a table: the outcome, and the operators that are wrong alone, the worst first."""
    kinds = list(dict.fromkeys(cause.kinds for cause in sorted(item.causes, key=lambda cause: -steps_of(cause.outcome))))
    more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
    return item.outcome[:80] + (f" ({', '.join(kinds[:3])}{more})" if kinds else "")


def steps_of(outcome: str) -> int:
    return int(outcome.split()[0]) if outcome.endswith("steps") else 1000 * outcome.startswith("no: ")


def worst(causes: Sequence[Cause]) -> str:
    return max((cause.outcome for cause in causes), key=steps_of)


def table_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in (heads, ["---"] * len(heads), *rows)]


def count_outcomes(heads: Sequence[str], rows: Sequence[Sequence[Found]]) -> list[str]:
    found = []
    for place, head in enumerate(heads):
        cells = [row[place].outcome for row in rows]
        words = ("equal", "1 step", "no: ", "inconclusive")
        equal, near, refused, unknown = (sum(cell.startswith(word) for cell in cells) for word in words)
        other = len(rows) - equal - near - refused - unknown
        text = f"- {head}: {equal} equal, {near} within one step, {other} otherwise, {refused} not taken, of {len(rows)}"
        found.append(text + (f"; {unknown} inconclusive" if unknown else ""))
    return found


def outcomes(
    model: Path,
    name: str,
    target: str,
    clients: Mapping[str, str],
    known: Mapping[tuple[str, str], Found],
    limit: float,
    folder: Path,
    kept: Path | None,
) -> list[Found]:
    """Return what came of a model's conversion for a target in each client, and of its operators alone where it is wrong.

    Args:
        model, name: the file, and how the table names it.
        target: of the conversion.
        clients: with the interpreters of their environments.
        known: what came of earlier conversions; those that are the same are not tried again.
        limit: seconds for one file in one client.
        folder: an empty one.
        kept: where the smallest files of what is wrong go; None if operators are not tried alone.
    """
    import onnx

    import qconvert
    from qconvert.data import random_inputs

    file = folder / "whole" / f"{WHOLE}.{qconvert.plugins.targets()[target].format}"
    file.parent.mkdir()
    try:
        graph = qconvert.load(model)
        sizes = {item: value.shape for item, value in random_inputs(graph, 1, 0)[0].items() if graph[item].static_shape is None}
        shapes = "; ".join(f"{item}={','.join(map(str, shape))}" for item, shape in sizes.items())
        qconvert.convert(model, file, target=target, force=True, **({"batch": 1, "input_shape": shapes} if sizes else {}))
        state, refused = digest(file), ""
    except qconvert.QConvertError as error:
        state = refused = f"no: {' '.join(error.reason.split())[:80]}"
    heads = {client: f"{title_of(client)}, {target}" for client in clients}
    heads = {client: head for client, head in heads.items() if (name, head) not in known or known[name, head].file != state}
    if refused or not heads:
        return [Found(name, head, state, refused) for head in heads.values()]
    try:
        run, inputs = store_example(file, random_inputs(qconvert.load(file), 1, 0)[0])
    except Exception as error:  # what onnxruntime does not run cannot be compared
        return [Found(name, head, state, f"inconclusive: here: {shorten(error)[:80]}") for head in heads.values()]
    found = [Found(name, f"onnxruntime, {target}", state, "", (), time_runs(run, inputs))]
    parts: dict[str, str] = {}
    noise = ""
    for client in heads:
        python = clients[client]
        outcome, milliseconds = run_files(client, python, file.parent, limit)[file.name]
        causes: list[Cause] = []
        if kept is not None and not outcome.startswith(("equal", "1 step")):
            parts = parts or cut_operators(onnx.load(file), dict(np.load(file.with_suffix(".npz"))), folder / "parts")
            alone = {part: said for part, (said, _) in run_files(client, python, folder / "parts", limit).items()}
            causes = keep_smallest(heads[client], parts, folder / "parts", alone, outcome.startswith("no: "), kept)
            if outcome.endswith("steps"):
                noise = noise or measure_noise(onnx.load(file), inputs)
                outcome += f", noise {noise}" + ("" if causes else ", no operator more than one")
        found.append(Found(name, heads[client], state, outcome, tuple(causes), milliseconds))
    return found


def digest(file: Path) -> str:
    """Return a digest of a file, of ONNX without what says how it was made."""
    import onnx

    if file.suffix != ".onnx":
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    model = onnx.load(file)
    model.producer_version = ""
    for item in (model, *model.graph.node):
        del item.metadata_props[:]
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()[:16]


def keep_smallest(head: str, parts: Mapping[str, str], folder: Path, alone: Mapping[str, str], refused: bool, kept: Path) -> list[Cause]:
    """Return the operators that are the cause of an outcome, and keep the smallest file of each.

    Args:
        head: the client and target.
        parts: file of an operator alone -> its kinds.
        folder: with those files.
        alone: what came of each.
        refused: whether the whole file was refused; what stands at an edge may be refused alone.
        kept: where the smallest files go.
    """
    import onnx

    causes = []
    for part, said in alone.items():
        if said.startswith("no: ") != refused or (not said.startswith("no: ") and not said.endswith("steps")):
            continue
        data = (folder / part).read_bytes()
        causes.append(Cause(parts[part], said, len(onnx.load_from_string(data).graph.node)))
        smallest = kept / (re.sub(r"\W+", "_", f"{head} {parts[part]} {'steps' if said.endswith('steps') else said[:40]}") + ".onnx")
        if not smallest.exists() or smallest.stat().st_size > len(data):
            smallest.write_bytes(data)
    return causes


def open_onnxruntime(model: str | bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def store_example(file: Path, feed: Mapping[str, Any]) -> tuple[Run, Mapping[str, Any]]:
    """Write inputs of a file next to it, and what onnxruntime or LiteRT computes of them; return what runs it, and the inputs."""
    import onnx

    if file.suffix == ".tflite":
        return store_tflite_example(file, feed)
    session = open_onnxruntime(str(file))
    sizes = {item.name: [size if isinstance(size, int) else 1 for size in item.shape] for item in session.get_inputs()}
    types = {item.name: item.type[7:-1].replace("float", "float32") for item in session.get_inputs()}
    inputs = {name: feed.get(name, np.zeros(shape, types[name])) for name, shape in sizes.items()}
    outputs = {f"out/{place}": value for place, value in enumerate(session.run(None, inputs))}
    scales = scales_of(onnx.load(file))
    np.savez(file.with_suffix(".npz"), **{f"in/{name}": value for name, value in inputs.items()}, **outputs, scales=scales)
    return lambda inputs: session.run(None, inputs), inputs


def store_tflite_example(file: Path, feed: Mapping[str, Any]) -> tuple[Run, Mapping[str, Any]]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter, run = Interpreter(model_path=str(file)), open_tflite(str(file))
    inputs = {item["name"]: feed.get(item["name"], np.zeros(item["shape"], item["dtype"])) for item in interpreter.get_input_details()}
    outputs = {f"out/{place}": value for place, value in enumerate(run(inputs))}
    scales = [item["quantization"][0] for item in interpreter.get_output_details()]
    np.savez(file.with_suffix(".npz"), **{f"in/{name}": value for name, value in inputs.items()}, **outputs, scales=scales)
    return run, inputs


def scales_of(model: Any) -> list[float]:
    """Return for each output the scale with which it is dequantized, 0 for others."""
    import onnx

    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    found = [makers.get(item.name) for item in model.graph.output]
    scales = [constants.get(node.input[1]) if node is not None and node.op_type == "DequantizeLinear" else None for node in found]
    return [float(scale.reshape(-1)[0]) if scale is not None and scale.size == 1 else 0.0 for scale in scales]


def measure_noise(model: Any, inputs: Mapping[str, Any]) -> str:
    """Return by how many steps outputs change where results of operators that compute are a step off: the least and the most."""
    import onnx
    from onnx.helper import make_node, make_tensor_value_info

    wanted = open_onnxruntime(model.SerializeToString()).run(None, dict(inputs))
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {item.name: [size.dim_value for size in item.type.tensor_type.shape.dim] for item in inferred.value_info}
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    nodes, scales = [], dict[str, tuple[list[int], float]]()
    for node in model.graph.node:
        name = node.output[0]
        nodes.append(node)
        if (
            node.op_type != "QuantizeLinear"
            or makers.get(node.input[0]) not in NOISY
            or name not in shapes
            or constants[node.input[1]].size > 1
        ):
            continue
        noise, scale = f"{name}/noise", node.input[1:]
        scales[noise] = shapes[name], float(constants[scale[0]])
        nodes[-1] = onnx.NodeProto.FromString(node.SerializeToString())
        nodes[-1].output[0] = f"{name}/noise/exact"
        nodes += [
            make_node("DequantizeLinear", [f"{name}/noise/exact", *scale], [f"{name}/noise/real"]),
            make_node("Add", [f"{name}/noise/real", noise], [f"{name}/noise/noisy"]),
            make_node("QuantizeLinear", [f"{name}/noise/noisy", *scale], [name]),
        ]
        model.graph.input.append(make_tensor_value_info(noise, onnx.TensorProto.FLOAT, shapes[name]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    session, rng, worst = open_onnxruntime(model.SerializeToString()), np.random.default_rng(0), []
    for _ in range(4):
        drawn = {
            name: (scale * rng.choice([-1.0, 0.0, 1.0], shape, p=[0.01, 0.98, 0.01])).astype(np.float32)
            for name, (shape, scale) in scales.items()
        }
        worst.append(compare_steps(wanted, session.run(None, {**inputs, **drawn}), scales_of(model)))
    return f"{min(worst):.0f} to {max(worst):.0f}"


def place_converted(model: Path, npu: str, folder: Path) -> str:
    """Return what Vela says of a model converted for an Ethos-U: operators on the NPU, of how many, cycles, time and memory."""
    from ethos import converted
    from qconvert_ethos.vela import format_estimates

    return converted(model, npu.rpartition("-")[0], npu, folder, lambda found: ", ".join(format_estimates(found)))


def cut_operators(model: Any, example: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Write each operator of a file between its integers, once for each kind and types, with an example's values; return file -> kinds."""
    import onnx

    folder.mkdir()
    model = onnx.shape_inference.infer_shapes(model)
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = {item.name for item in model.graph.initializer}
    infos = {item.name: item for item in (*model.graph.value_info, *model.graph.output, *model.graph.input)}
    elements = {name: infos[name].type.tensor_type.elem_type for name in producers if name in infos}
    stored = [name for name, kind in elements.items() if onnx.TensorProto.DataType.Name(kind) in STORED]
    ends = list(dict.fromkeys([*stored, *(item.name for item in model.graph.output)]))
    everything = onnx.ModelProto.FromString(model.SerializeToString())
    everything.graph.output.extend(infos[name] for name in stored if name not in {item.name for item in model.graph.output})
    session = open_onnxruntime(everything.SerializeToString())
    inputs = {name[3:]: value for name, value in example.items() if name.startswith("in/")}
    values = {**inputs, **dict(zip((item.name for item in session.get_outputs()), session.run(None, inputs), strict=True))}
    found: dict[str, str] = {}
    known = set()
    for end in ends:
        nodes, begins, waiting = [], set[str](), [end]
        while waiting:
            node = producers.get(name := waiting.pop())
            if node is None or (name != end and name in stored):
                begins |= {name} - constants
            elif node not in nodes:
                nodes.append(node)
                waiting += [item for item in node.input if item]
        kinds = sorted({node.op_type for node in nodes} - {"DequantizeLinear", "QuantizeLinear"})
        types = [str(values[name].dtype) for name in (*sorted(begins), end) if name in values]
        if (key := (*kinds, *types)) in known or not begins <= values.keys():
            continue
        known.add(key)
        file = folder / f"{len(found):03}.onnx"
        try:
            onnx.save(onnx.utils.Extractor(model).extract_model(sorted(begins), [end]), file)
            store_example(file, values)
        except Exception as error:  # a part that does not stand alone explains nothing
            print(f"{end}: {error}", file=sys.stderr)
            file.unlink(missing_ok=True)
            continue
        found[file.name] = "+".join(kinds) or "QuantizeLinear"
    return found


def run_files(client: str, python: str, folder: Path, limit: float) -> dict[str, tuple[str, float | None]]:
    """Return what came of each file of a folder in a client, and milliseconds; a file with which its process ends or hangs is named so."""
    found: dict[str, tuple[str, float | None]] = {}
    files = {file.name for file in model_files(folder)}
    while left := sorted(files - found.keys()):
        with tempfile.TemporaryDirectory() as waiting:
            for name in left:
                for file in (folder / name, (folder / name).with_suffix(".npz")):
                    shutil.copy(file, waiting)
            line = [python, __file__, "--as", client, waiting]
            said = f"inconclusive: longer than {limit:.0f} s"
            with tempfile.TemporaryFile("w+") as printed:
                try:
                    subprocess.run(line, stdout=printed, stderr=subprocess.DEVNULL, timeout=limit, check=False)
                    said = "no: the process ended"
                except subprocess.TimeoutExpired:
                    pass
                printed.seek(0)
                for text in printed.read(2**22).splitlines():
                    if text.startswith('{"file": '):
                        item = json.loads(text)
                        found[str(item["file"])] = str(item["outcome"]), item["milliseconds"]
        culprit = next((name for name in left if name not in found), None)
        if culprit is not None:
            found[culprit] = said, None
    return found


def version_of(python: str, client: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({client_of(client).package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        as_client(*sys.argv[2:])
    else:
        main()
