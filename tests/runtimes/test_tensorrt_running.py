"""The part that runs an engine on a GPU, with a GPU that is none: memory of this machine, and an engine that doubles its input."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from qconvert.runtimes.tensorrt_child import Engine, load_engine


class _Cuda:
    """CUDA's runtime library: what is allocated, copied and freed."""

    def __init__(self) -> None:
        self.live: dict[int, Any] = {}
        self.fails = ""

    def cudaMalloc(self, place: Any, size: Any) -> int:  # noqa: N802 - the library's name
        if self.fails == "cudaMalloc":
            return 2
        buffer = ctypes.create_string_buffer(size.value)
        place._obj.value = ctypes.addressof(buffer)
        self.live[place._obj.value] = buffer
        return 0

    def cudaMemcpy(self, there: Any, here: Any, size: Any, direction: int) -> int:  # noqa: N802
        assert direction in (1, 2)
        ctypes.memmove(there, here, size.value)
        return 0

    def cudaDeviceSynchronize(self) -> int:  # noqa: N802
        return 0

    def cudaFree(self, place: Any) -> int:  # noqa: N802
        del self.live[place.value]
        return 0


class _Context:
    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.places: dict[str, int] = {}

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shape = shape
        return True

    def set_tensor_address(self, name: str, place: int) -> bool:
        self.places[name] = place
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shape

    def execute_async_v3(self, stream: int) -> bool:
        count = int(np.prod(self.shape))
        given, result = ((ctypes.c_float * count).from_address(self.places[name]) for name in ("x", "y"))
        for index in range(count):
            result[index] = 2 * given[index]
        return True


class _Engine:
    num_io_tensors = 2

    def create_execution_context(self) -> _Context:
        return _Context()

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_mode(self, name: str) -> str:
        return {"x": "in", "y": "out"}[name]

    def get_tensor_dtype(self, name: str) -> str:
        return "float32"


class _TensorRT:
    class TensorIOMode:
        OUTPUT = "out"

    class Runtime:
        def __init__(self, log: Any) -> None:
            self.log = log

        def deserialize_cuda_engine(self, plan: Any) -> Any:
            if plan == b"none":
                self.log.kept.append((1, "no device"))
                return None
            return _Engine()

    @staticmethod
    def nptype(dtype: str) -> Any:
        return np.float32


class _Log:
    def __init__(self) -> None:
        self.kept: list[tuple[int, str]] = []


def _engine(cuda: _Cuda) -> Engine:
    engine, said = load_engine(_TensorRT, _Log(), b"plan")
    assert said == ""
    engine._cuda = cuda
    return engine  # type: ignore[no-any-return]


def test_values_go_there_and_come_back() -> None:
    cuda = _Cuda()
    engine = _engine(cuda)
    for shape in ((2, 3), (1, 5)):
        value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        found, results = engine.run([["x", list(shape)]], [value.tobytes()])
        assert found == {"names": ["y"], "values": [["float32", list(shape)]]}
        np.testing.assert_array_equal(np.frombuffer(results[0], np.float32).reshape(shape), 2 * value)
        assert cuda.live == {}


def test_an_error_of_the_device_is_named_and_nothing_stays() -> None:
    cuda = _Cuda()
    cuda.fails = "cudaMalloc"
    with pytest.raises(RuntimeError, match="cudaMalloc gave error 2"):
        _engine(cuda).run([["x", [1]]], [b"0000"])
    assert cuda.live == {}


def test_an_engine_that_does_not_load() -> None:
    log = _Log()
    assert load_engine(_TensorRT, log, b"none") == (None, "no device")
    assert log.kept == []
