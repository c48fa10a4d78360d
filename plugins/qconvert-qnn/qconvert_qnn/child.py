"""The program that runs a model with onnxruntime-qnn in a process of its own: a graph may end it. It imports nothing of qconvert.

Lines of JSON come in and go out, with the bytes of arrays after them: {"load": [file, options of the provider, threads]}, and
{"run": [[dtype, shape]…]} with the inputs, in the model's order, after it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

import numpy as np

_DTYPES = {"float": "float32", "double": "float64", "float16": "float16"}


def _load_session(path: str, device: dict[str, str], threads: int) -> tuple[Any, dict[str, Any]]:
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name.startswith("QNN")]
    options.add_provider_for_devices(devices[:1], {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), **device})
    session = onnxruntime.InferenceSession(path, options)
    assigned = [
        [node.name, node.op_type, "HTP" if part.ep_name.startswith("QNN") else "CPU"]
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    sides = {
        side: [[item.name, _dtype(item.type), item.shape] for item in found]
        for side, found in (("inputs", session.get_inputs()), ("outputs", session.get_outputs()))
    }
    return session, {"version": onnxruntime_qnn.__version__, "assigned": assigned, **sides}


def _dtype(name: str) -> str:
    plain = name.removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(plain, plain)


def _answer_requests(source: BinaryIO, sink: BinaryIO) -> None:
    session: Any = None
    for line in source:
        question = json.loads(line)
        arrays: list[Any] = []
        try:
            if "load" in question:
                session, answer = _load_session(*question["load"])
            else:
                given = []
                for dtype, shape in question["run"]:
                    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
                    given.append(np.frombuffer(source.read(count), dtype).reshape(shape))
                names = [item.name for item in session.get_inputs()]
                arrays = session.run(None, dict(zip(names, given, strict=True)))
                answer = {"arrays": [[item.dtype.name, list(item.shape)] for item in arrays]}
        except Exception as error:  # any error of onnxruntime is the answer
            answer, arrays = {"error": " ".join(str(error).split())}, []
        sink.write(json.dumps(answer).encode() + b"\n")
        for item in arrays:
            sink.write(np.ascontiguousarray(item).tobytes())
        sink.flush()


if __name__ == "__main__":
    # The libraries print to stdout; the pipe is for answers only.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _answer_requests(sys.stdin.buffer, answers)
    sys.stdout.flush()
    os._exit(0)  # the provider's library does not always exit
