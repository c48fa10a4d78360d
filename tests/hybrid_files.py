"""TFLite files of one SVDF of real data, with real or int8 weights, made with the schema's own objects, for LiteRT's kernels."""

from __future__ import annotations

import numpy as np
from lstm_files import File

_SVDF = 27  # the builtin code


def real_svdf_file(
    seed: int = 0,
    rows: int = 1,
    inputs: int = 10,
    units: int = 6,
    rank: int = 1,
    memory: int = 5,
    bias: bool = True,
    activation: int = 0,
    weights: tuple[str, str] = ("float32", "float32"),
    asymmetric: bool = False,
    wrong: str = "",
    zero_point: int = 0,
    stated_rank: int | None = None,
    fixed: dict[str, np.ndarray] | None = None,
) -> bytes:
    """An SVDF with random weights.

    Args:
        weights: types of those over the data and of those over the memory.
        wrong: the name of a tensor that is too long by one.
        zero_point: of integer weights.
        stated_rank: what the file says in place of `rank`.
        fixed: constants in place of random ones.
    """
    rng = np.random.default_rng(seed)
    f = File()
    filters = units * rank

    def constant(name: str, dtype: str, *shape: int, scale: float = 0.01) -> int:
        shape = (*shape[:-1], shape[-1] + 1) if name == wrong else shape
        real = dtype == "float32"
        data = rng.normal(0, 0.6, shape) if real else rng.integers(-127, 128, shape)
        data = (fixed or {}).get(name, data).astype(dtype)
        return f.tensor(name, shape, dtype, None if real else (scale, zero_point), data)

    places = [
        f.tensor("data", (rows, inputs), "float32", None),
        constant("feature", weights[0], filters, inputs, scale=0.0037),
        constant("time", weights[1], filters, memory, scale=0.0081),
        constant("bias", "float32", units) if bias else -1,
        f.tensor("state", (rows, filters * memory + (wrong == "state")), "float32", None, state=True),
    ]
    result = f.tensor("output", (rows, units), "float32", None)
    options = f.schema.SVDFOptionsT()
    options.rank, options.fusedActivationFunction = rank if stated_rank is None else stated_rank, activation
    options.asymmetricQuantizeInputs = asymmetric
    return f.finish(_SVDF, 4 if asymmetric else 2, places, [result], options, "SVDFOptions")
