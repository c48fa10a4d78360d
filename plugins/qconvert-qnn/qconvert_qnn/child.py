"""The program that runs a model with onnxruntime-qnn in a process of its own: a graph may end it. It imports nothing of qconvert.

Questions are {"load": [file, options of the provider, threads]}, and {"run": [[dtype, shape]…]} with the inputs, in the model's order,
after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DTYPES = {"float": "float32", "double": "float64", "float16": "float16"}


def _load_session(path: str, device: dict[str, str], threads: int) -> tuple[Any, dict[str, Any]]:
    import onnxruntime
    import onnxruntime_qnn

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


def start() -> Callable[..., tuple[dict[str, Any], list[Any]]]:
    """Return what answers questions."""
    import onnxruntime
    import onnxruntime_qnn

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.register_execution_provider_library("QNN", onnxruntime_qnn.get_library_path())
    loaded: list[Any] = []

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], list[Any]]:
        if "load" in question:
            session, described = _load_session(*question["load"])
            loaded.append(session)
            return described, []
        given = [read(dtype, shape) for dtype, shape in question["run"]]
        names = [item.name for item in loaded[-1].get_inputs()]
        arrays = loaded[-1].run(None, dict(zip(names, given, strict=True)))
        return {"arrays": [[item.dtype.name, list(item.shape)] for item in arrays]}, arrays

    return answer
