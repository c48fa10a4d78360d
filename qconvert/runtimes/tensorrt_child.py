"""The other end of runtimes/tensorrt.py: the program that has TensorRT parse .onnx files and build engines of them
(runtimes/child_loop.py runs it).

It imports nothing of qconvert. On standard error a line for each node says how far TensorRT came.

TensorRT-RTX was tried (1.7). What differs in TensorRT itself (10, 11) follows its documentation and was never run: it builds for the
device at hand alone, and tells layers by an inspector of the engine.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

#: The packages that give TensorRT, TensorRT-RTX before TensorRT: it builds without a device.
PACKAGES = ("tensorrt_rtx", "tensorrt_rtx_bindings", "tensorrt")
#: How the message begins in which the builder of TensorRT-RTX lists the layers of an engine.
LISTED = "Layers:"
#: Severities of messages that are kept.
WARNING = 2


def start(memory: str) -> Callable[..., tuple[dict[str, Any], list[memoryview]]]:
    """Return what answers "build" with an engine of a model, "run" with the results of the engine that was built last.

    Args:
        memory: the most bytes that the process may take; 0 for no limit.
    """
    limit_memory(int(memory))
    keep_freed()
    name, trt = import_any()
    log: Any = logger_of(trt) if trt is not None else None
    engine: Any = None

    def answer(question: dict[str, Any], read: Callable[..., Any]) -> tuple[dict[str, Any], list[memoryview]]:
        nonlocal engine
        if trt is None:
            return {"missing": name}, []
        try:
            if "build" in question:
                model = read("bytes", [question["build"]["size"]])
                found, engine = build_engine(trt, log, model, question["build"])
                return {**found, "package": name, "version": str(trt.__version__)}, []
            found, results = engine.run(question["run"], [read("bytes", [size]) for size in question["sizes"]])
            return found, [memoryview(item) for item in results]
        except Exception as error:  # of whatever class
            return {"error": f"{type(error).__name__}: {error}{''.join(f' | {text}' for _, text in log.kept[-3:])}"}, []

    return answer


def limit_memory(most: int) -> None:
    """Limit the process to that many bytes, and make it the first one that the system kills when memory is short."""
    try:
        import resource

        if most:
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except (ImportError, OSError, ValueError):  # another system, or less is allowed already
        pass


def keep_freed() -> None:
    """Keep freed memory in the process: a builder allocates and frees so much that otherwise half of its time is the system's."""
    from ctypes import CDLL

    try:
        for parameter in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            CDLL(None).mallopt(parameter, 2**30)
    except (AttributeError, OSError, TypeError):  # another C library
        pass


def import_any() -> tuple[str, Any]:
    """Return name and module of the first package that can be imported; the errors and None if there is none."""
    wrong: list[str] = []
    for name in PACKAGES:
        try:
            return name, import_module(name)
        except ImportError as error:
            wrong.append(f"{name}: {error}")
    return "; ".join(wrong), None


def logger_of(trt: Any) -> Any:
    """A logger that keeps warnings, errors and the list of layers."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.kept: list[tuple[int, str]] = []
            self.layers = ""

        def log(self, severity: Any, text: str) -> None:
            if int(severity) <= WARNING:
                self.kept.append((int(severity), text))
                print(text, file=sys.stderr, flush=True)
            elif text.startswith(LISTED):
                self.layers = text
            elif text.startswith("Parsing node:"):
                print(text, file=sys.stderr, flush=True)

    return Logger()


def build_engine(trt: Any, log: Any, model: bytes, question: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Parse and build a model; return the parser's errors, messages and the list of layers, and the engine if it can run here."""
    log.kept, log.layers = [], ""
    began = time.monotonic()
    builder = trt.Builder(log)
    network = builder.create_network(strong_types(trt))
    parser = trt.OnnxParser(network, log)
    parsed = parser.parse(model, question["path"])
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    found: dict[str, Any] = {"parsed": bool(parsed), "errors": [[e.desc(), e.node_operator(), e.node_name()] for e in errors]}
    plan = None
    if parsed:
        print("Building", file=sys.stderr, flush=True)
        config, found["capability"] = configure_builder(trt, builder, network, question)
        plan = builder.build_serialized_network(network, config)
    found.update(log=log.kept, layers=log.layers, size=plan.nbytes if plan else 0, seconds=time.monotonic() - began)
    engine = None
    if plan and (question["run"] or not log.layers):
        engine, found["device"] = load_engine(trt, log, plan)
    if engine is not None and not found["layers"]:
        found["inspected"] = engine.inspect_layers()
    return found, engine


def strong_types(trt: Any) -> int:
    """The flag of strongly typed networks; none where all are (TensorRT 11 deprecates it)."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def configure_builder(trt: Any, builder: Any, network: Any, question: dict[str, Any]) -> tuple[Any, str]:
    """Return the builder's configuration, and its compute capability; "" for that of the device at hand."""
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    capability = getattr(getattr(trt, "ComputeCapability", None), question["capability"], None)
    if capability is not None and hasattr(config, "set_compute_capability"):
        config.num_compute_capabilities = 1
        config.set_compute_capability(capability, 0)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    bounds = {tensorrt_name(name, [item.name for item in inputs]): shapes for name, shapes in question["bounds"].items()}
    stated = [(item.name, bounds[item.name]) for item in inputs if -1 in tuple(item.shape) and item.name in bounds]
    if stated:
        profile = builder.create_optimization_profile()
        for name, bounds in stated:
            profile.set_shape(name, *bounds)
        config.add_optimization_profile(profile)
    return config, question["capability"] if capability is not None else ""


def tensorrt_name(name: str, inputs: list[str]) -> str:
    """Return TensorRT's name of an input: the parser renames an input that is also an output."""
    return f"__{name}" if name not in inputs and f"__{name}" in inputs else name


def load_engine(trt: Any, log: Any, plan: Any) -> tuple[Any, str]:
    """Return the engine, ready to run, and ""; or None and the reason why it cannot run here."""
    before = len(log.kept)
    try:
        engine = trt.Runtime(log).deserialize_cuda_engine(plan)
        if engine is not None:
            return Engine(trt, engine), ""
        said = "; ".join(text for _, text in log.kept[before:])
    except Exception as error:  # of whatever class
        said = f"{type(error).__name__}: {error}"
    finally:
        del log.kept[before:]
    return None, said or "the engine was not loaded"


class Engine:
    """An engine on the device. Never run where it was written: no device was there.

    Args:
        trt: the package.
        engine: its ICudaEngine.
    """

    def __init__(self, trt: Any, engine: Any) -> None:
        from ctypes import CDLL

        self._trt, self._engine = trt, engine
        self._context = engine.create_execution_context()
        self._cuda = next(filter(None, map(library, ("libcudart.so.13", "libcudart.so.12", "libcudart.so"))), None) or CDLL(None)

    def inspect_layers(self) -> str:
        """Return the layers as JSON of TensorRT's inspector."""
        inspector = self._engine.create_engine_inspector()
        return str(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON))

    def run(self, inputs: list[Any], values: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """Computes; `inputs` are names and shapes. The answer describes the outputs, whose bytes follow."""
        import ctypes

        kept: list[Any] = []
        sides = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        own = [name for name in sides if self._engine.get_tensor_mode(name) != self._trt.TensorIOMode.OUTPUT]
        try:
            for (given, shape), value in zip(inputs, values, strict=True):
                name = tensorrt_name(given, own)
                self._context.set_input_shape(name, tuple(shape))
                kept.append(self._allocate(len(value)))
                self._call_cuda("cudaMemcpy", kept[-1], value, ctypes.c_size_t(len(value)), 1)
                self._context.set_tensor_address(name, kept[-1].value or 0)
            outputs = []
            for index in range(self._engine.num_io_tensors):
                name = self._engine.get_tensor_name(index)
                if self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.OUTPUT:
                    shape = tuple(self._context.get_tensor_shape(name))
                    dtype = self._trt.nptype(self._engine.get_tensor_dtype(name))
                    size = math.prod(shape) * dtype().itemsize
                    kept.append(self._allocate(size))
                    self._context.set_tensor_address(name, kept[-1].value or 0)
                    outputs.append((name, dtype.__name__.rstrip("_"), shape, kept[-1], size))
            if not self._context.execute_async_v3(0):
                raise RuntimeError("the engine did not run")
            self._call_cuda("cudaDeviceSynchronize")
            results = []
            for *_, place, size in outputs:
                buffer = ctypes.create_string_buffer(size)
                self._call_cuda("cudaMemcpy", buffer, place, ctypes.c_size_t(size), 2)
                results.append(buffer.raw)
            return {"names": [item[0] for item in outputs], "values": [[item[1], list(item[2])] for item in outputs]}, results
        finally:
            for place in kept:
                self._cuda.cudaFree(place)

    def _allocate(self, size: int) -> Any:
        import ctypes

        place = ctypes.c_void_p()
        self._call_cuda("cudaMalloc", ctypes.byref(place), ctypes.c_size_t(max(size, 1)))
        return place

    def _call_cuda(self, function: str, *arguments: Any) -> None:
        if code := getattr(self._cuda, function)(*arguments):
            raise RuntimeError(f"{function} gave error {code}")


def library(name: str) -> Any:
    """A shared library, or None."""
    from ctypes import CDLL

    try:
        return CDLL(name)
    except OSError:
        return None
