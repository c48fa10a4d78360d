"""Fidelity and latency of converted models, against the source model in LiteRT with its default kernels."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: Two values of different types are one if they differ by no more than this share of a step, for float32 rounding.
SAME_STEP = 1e-3


@dataclass(frozen=True)
class Port:
    """An input or output: dtype, shape (None where only known at run time), per-tensor scale (0 if not quantized), zero point."""

    dtype: str
    shape: tuple[int | None, ...]
    scale: float = 0.0
    zero_point: int = 0


class SourceModel:
    """A .tflite model in LiteRT.

    Args:
        model: the file's content.
        threads: number of threads.

    Raises:
        ValueError, RuntimeError: LiteRT does not take the model.
    """

    def __init__(self, model: bytes, threads: int = 1) -> None:
        self._model, self._threads = model, threads
        self.reset()
        inputs, outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self._inputs, self._outputs = [item["index"] for item in inputs], [item["index"] for item in outputs]
        self.inputs, self.outputs = [_port(item) for item in inputs], [_port(item) for item in outputs]

    def reset(self) -> None:
        """Loads the model again, so that its states have their first values; LiteRT's own reset leaves out resource variables."""
        from ai_edge_litert.interpreter import Interpreter

        with _standard_error_off():
            self._interpreter = Interpreter(model_content=self._model, num_threads=self._threads)
            self._interpreter.allocate_tensors()

    def run(self, values: list[Array]) -> list[Array]:
        """Runs once on stored values, in the model's order; the next step of a stateful model."""
        for index, value in zip(self._inputs, values, strict=True):
            self._interpreter.set_tensor(index, value)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(index) for index in self._outputs]


def _port(detail: Any) -> Port:
    scale, zero_point = detail["quantization"]
    return Port(np.dtype(detail["dtype"]).name, tuple(int(size) for size in detail["shape"]), float(scale), int(zero_point))


@contextmanager
def _standard_error_off() -> Iterator[None]:
    """LiteRT announces its delegate on the process's standard error, past Python."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


class OnnxModel:
    """A .onnx file in onnxruntime's CPU execution provider. States are carried from run to run, as the file's metadata lists them.

    Args:
        path: the file.
        source: the model that it was made from; its inputs and outputs are matched to the file's by position, or else by shape.
        threads: number of threads; 0 for onnxruntime's default.
        optimized: where to write the graph that onnxruntime runs.
        exact: whether kernels are kept from saturating on CPUs without VNNI, for outputs that are compared; never where time is measured.
    """

    def __init__(self, path: Path, source: SourceModel, threads: int = 1, optimized: Path | None = None, exact: bool = False) -> None:
        from qconvert.runtimes.onnxruntime import OnnxRuntime

        self._runtime = OnnxRuntime(path, threads, save_optimized=optimized, exact=exact)
        self._is_stateful = bool(self._runtime.states)
        self._source = source
        self._inputs = [
            (name, Port(dtype, tuple(size if isinstance(size, int) else None for size in shape)))
            for name, (dtype, shape) in self._runtime.inputs.items()
        ]
        self._input_order = matching([p.shape for p in source.inputs], [port.shape for _, port in self._inputs])

    def feeds(self, values: list[Array]) -> dict[str, Array]:
        """Stored values of the source's inputs as the file takes them."""
        ports = [self._inputs[i] for i in self._input_order]
        return {
            name: np.ascontiguousarray(in_layout(stored(value, own, port.dtype), port.shape, (0, 3, 1, 2)))
            for value, own, (name, port) in zip(values, self._source.inputs, ports, strict=True)
        }

    def run_fed(self, feeds: dict[str, Array]) -> list[Array]:
        """Runs once; outputs in the file's order."""
        # the bare session where it can be, whose call is 2 microseconds shorter: a tenth of a small model's time
        outputs: list[Array] = list(self._runtime.run(feeds).values()) if self._is_stateful else self._runtime.session.run(None, feeds)
        return outputs

    def reset(self) -> None:
        """Gives states their first values."""
        self._runtime.reset()

    def run(self, values: list[Array]) -> list[Array]:
        """Runs once; outputs in the source's order and layout."""
        outputs = self.run_fed(self.feeds(values))
        shapes = [port.shape for port in self._source.outputs]
        order = matching(shapes, [output.shape for output in outputs])
        return [in_layout(outputs[i], shape, (0, 2, 3, 1)) for i, shape in zip(order, shapes, strict=True)]


def matching(wanted: list[tuple[int | None, ...]], offered: list[tuple[int | None, ...]]) -> list[int]:
    """For each wanted shape the index of an offered one: the same position if every pair fits, otherwise the first free one that does."""
    if len(wanted) != len(offered):
        raise ValueError(f"{len(offered)} inputs or outputs in place of {len(wanted)}")
    if all(_fits(a, b) for a, b in zip(wanted, offered, strict=True)):
        return list(range(len(wanted)))
    free, order = list(range(len(offered))), []
    for shape in wanted:
        fitting = [i for i in free if _fits(shape, offered[i])]
        if not fitting:
            raise ValueError(f"no input or output of the shape {shape} among {offered}")
        free.remove(fitting[0])
        order.append(fitting[0])
    return order


def _fits(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """Whether the sizes are the same in some order; an unknown size fits any."""
    return None in a or None in b or sorted(s for s in a if s and s > 1) == sorted(s for s in b if s and s > 1)


def in_layout(value: Array, shape: tuple[int | None, ...], permutation: tuple[int, ...]) -> Array:
    """The value in that shape: as it is, permuted, or reshaped, the first that fits."""
    permuted = {3: (0, 2, 1), 4: permutation}.get(value.ndim)
    for candidate in (value,) if permuted is None else (value, value.transpose(permuted)):
        if len(shape) == candidate.ndim and all(size in (None, own) for size, own in zip(shape, candidate.shape, strict=True)):
            return candidate
    known = [size for size in shape if size is not None]
    return value.reshape(known) if len(known) == len(shape) and np.prod(known) == value.size else value


def stored(value: Array, port: Port, dtype: str) -> Array:
    """A stored value of the port in another type: float is dequantized, another integer type is shifted from one range to the other."""
    if value.dtype == dtype:
        return value
    if dtype == "float32" and port.scale:
        return ((value.astype(np.float32) - port.zero_point) * np.float32(port.scale)).astype(np.float32)
    if value.dtype.kind in "iu" and np.dtype(dtype).kind in "iu":
        shift = np.iinfo(dtype).min - np.iinfo(value.dtype).min if port.scale else 0
        return (value.astype(np.int64) + shift).astype(dtype)
    raise ValueError(f"an input of type {dtype} in place of {value.dtype}")


def random_inputs(source: SourceModel, samples: int, seed: int = 0) -> list[list[Array]]:
    """Values for each input, uniform over the whole range of an integer type and over [-1, 1) for floats."""
    rng = np.random.default_rng(seed)

    def draw(port: Port) -> Array:
        shape = [size or 1 for size in port.shape]
        if port.dtype == "bool":
            return rng.integers(0, 2, shape).astype(np.bool_)
        if np.dtype(port.dtype).kind == "f":
            return rng.uniform(-1, 1, shape).astype(port.dtype)
        info = np.iinfo(port.dtype)
        return rng.integers(info.min, info.max, shape, dtype=port.dtype, endpoint=True)

    return [[draw(port) for port in source.inputs] for _ in range(samples)]


@dataclass(frozen=True)
class Fidelity:
    """How a result's outputs differ from the source's.

    Attributes:
        equal: share of elements that are equal.
        worst_lsb: largest difference over the integer outputs, in steps of each output's scale; None without such outputs.
        worst_range: largest difference over the float outputs, as a share of the output's range; None without such outputs.
    """

    equal: float
    worst_lsb: float | None
    worst_range: float | None


def compare(source: SourceModel, result: OnnxModel, inputs: list[list[Array]]) -> Fidelity:
    """Runs both on each sample, which are steps of one sequence for stateful models, and compares every output element."""
    source.reset()
    result.reset()
    equal = total = 0
    worst: dict[str, float] = {}
    for values in inputs:
        for port, a, b in zip(source.outputs, source.run(values), result.run(values), strict=True):
            kind = "range" if a.dtype.kind == "f" else "lsb"
            if a.shape != b.shape:
                raise ValueError(f"an output of the shape {b.shape} in place of {a.shape}")
            same, largest = _difference(a, b, port)
            equal, total, worst[kind] = equal + same, total + a.size, max(worst.get(kind, 0.0), largest)
    return Fidelity(equal / max(total, 1), worst.get("lsb"), worst.get("range"))


def _difference(source: Array, result: Array, port: Port) -> tuple[int, float]:
    """(number of equal elements, largest difference) of one output; steps for integers, share of the range for floats."""
    a, b = source.astype(np.float64), result.astype(np.float64)
    if source.dtype.kind == "f":
        spread = float(np.ptp(a[np.isfinite(a)])) if np.isfinite(a).any() else 0.0
        steps, tolerance = (b - a) / (spread or 1.0), 0.0
    elif result.dtype.kind == "f" and port.scale:
        steps, tolerance = b / port.scale + port.zero_point - a, SAME_STEP
    else:
        shifted = bool(port.scale) and result.dtype.kind in "iu" and result.dtype != source.dtype
        shift = np.iinfo(source.dtype).min - np.iinfo(result.dtype).min if shifted else 0
        steps, tolerance = b + shift - a, 0.0
    steps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, steps) if source.dtype == result.dtype else steps
    sizes = np.nan_to_num(np.abs(steps), nan=np.inf)
    return int((sizes <= tolerance).sum()), float(sizes.max(initial=0.0))


def profile_nodes(path: Path, feeds: dict[str, Array], runs: int, folder: Path) -> list[tuple[str, str, float]]:
    """(name, type, least microseconds) of the nodes that onnxruntime runs on one thread; their graph is optimized.onnx in `folder`.

    The profiler adds some 2 microseconds to each node, in a small network more than the nodes take. What the nodes take together beyond a
    run without it is subtracted, from each the same.
    """
    import onnxruntime

    from qconvert.runtimes.onnxruntime import OnnxRuntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.enable_profiling, options.log_severity_level = 1, True, 4
    options.profile_file_prefix, options.optimized_model_filepath = str(folder / "profile"), str(folder / "optimized.onnx")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, feeds)
    found = Path(session.end_profiling())
    events: list[Any] = json.loads(found.read_text())
    found.unlink()
    times: dict[tuple[str, str], list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            times.setdefault((event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]), []).append(event["dur"])
    plain = OnnxRuntime(path, exact=False)
    bound = partial(plain.session.run, None, feeds) if plain.states else plain.bind(feeds)
    _, whole = interleaved_latency({"": bound}, runs)[""]
    added = max(0.0, sum(min(values) for values in times.values()) - 1000 * whole) / max(len(times), 1)
    return [(name, kind, max(0.0, min(values) - added)) for (name, kind), values in times.items()]


def count_transposes(path: Path) -> int:
    """The number of Transposes in a .onnx file."""
    import onnx

    return sum(node.op_type == "Transpose" for node in onnx.load(str(path), load_external_data=False).graph.node)


def interleaved_latency(runners: dict[str, Callable[[], object]], runs: int, rounds: int = 6) -> dict[str, tuple[float, float]]:
    """(median, best) time of each in milliseconds over at least `runs` calls.

    The calls are spread over rounds in which each runner has its turn, so that a slow moment of the machine hits all alike. Before
    each turn there is a pause, because worker threads of the one before spin for a while, and there are two calls that do not count.
    """
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, runner in runners.items():
            time.sleep(0.03)
            runner()
            runner()
            for _ in range(-(-runs // rounds)):
                started = time.perf_counter()
                runner()
                times[name].append(time.perf_counter() - started)
    return {name: (statistics.median(values) * 1000, min(values) * 1000) for name, values in times.items()}
