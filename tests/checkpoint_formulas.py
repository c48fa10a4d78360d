"""The weights of checkpoints by the formulas that their tools state, written a second time: element by element, with numpy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_TYPES = {
    "F16": np.float16,
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "I32": np.int32,
    "I64": np.int64,
    "I8": np.int8,
    "U8": np.uint8,
    "U32": np.uint32,
}
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)


def write_checkpoint(folder: Path, tensors: dict[str, Any], stated: Any = None, **config: Any) -> Path:
    """Write a checkpoint: its tensors, and config.json with what is stated of its quantization."""
    from qconvert.checkpoints.safetensors import written_file

    folder.mkdir(parents=True, exist_ok=True)
    with written_file(folder / "model.safetensors", list(tensors), {}) as writer:
        for name, tensor in tensors.items():
            writer.add(name, np.asarray(tensor))
    (folder / "config.json").write_text(json.dumps({**config, **({"quantization_config": stated} if stated else {})}))
    return folder


def tensors_of(folder: Path) -> dict[str, Any]:
    """All tensors of the .safetensors files of a folder."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        head = json.loads(content[8 : 8 + length])
        head.pop("__metadata__", None)
        for name, entry in head.items():
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            found[name] = np.frombuffer(content[first:last], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return found


def stream(words: Any, bits: int) -> Any:
    """Integers of a few bits along the last axis of words of 32, lowest bits first; those of filling too."""
    rows = []
    for row in words.view(np.uint32).reshape(-1, words.shape[-1]).tolist():
        number = sum(word << (32 * place) for place, word in enumerate(row))
        rows.append([(number >> (bits * place)) & (2**bits - 1) for place in range(len(row) * 32 // bits)])
    return np.array(rows)


def weights_of(folder: Path) -> dict[str, Any]:
    """Layer -> float64 [N, K], without any rounding."""
    model = json.loads((folder / "config.json").read_text())
    stated = model.get("quantization_config") or model["quantization"]
    tensors, found = tensors_of(folder), {}
    for name in tensors:
        layer, _, part = name.rpartition(".")
        if (method := str(stated.get("quant_method", "mlx"))) == "bitsandbytes" and name.endswith(".weight.absmax"):
            found[layer.removesuffix(".weight")] = _bitsandbytes(tensors, layer.removesuffix(".weight"))
        elif part == "_weight_qdata":
            found[layer] = _torchao({key.rpartition("_weight_")[2]: value for key, value in tensors.items() if key.startswith(layer)})
        elif part == "SCB":  # each product is rounded to float32
            products = tensors[f"{layer}.weight"].astype(np.float32) * tensors[name][:, None]
            found[layer] = (products * np.float32(1 / 127)).astype(np.float64)
        elif (formula := _FORMULAS.get((method, part))) is not None:
            found[layer] = formula(
                {key.removeprefix(f"{layer}."): value for key, value in tensors.items() if key.startswith(layer)}, stated
            )
    return found


def _repeated(numbers: Any, inputs: int) -> Any:
    return np.repeat(numbers.astype(np.float64), inputs // numbers.shape[1], axis=1)


def _gptq(parts: Any, stated: Any) -> Any:
    bits = stated["bits"]
    integers = stream(np.ascontiguousarray(parts["qweight"].T), bits)
    zeros = stream(parts["qzeros"], bits).T + (0 if stated.get("checkpoint_format") == "gptq_v2" else 1)
    groups = parts.get("g_idx", np.arange(integers.shape[1]) // (integers.shape[1] // zeros.shape[1]))
    return (integers - zeros[:, groups]) * parts["scales"].astype(np.float64).T[:, groups]


def _awq(parts: Any, stated: Any) -> Any:
    def columns(words: Any) -> Any:
        each = (words.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
        return each[..., _AWQ].reshape(len(words), -1).T.astype(np.float64)

    integers = columns(parts["qweight"])
    return (integers - _repeated(columns(parts["qzeros"]), integers.shape[1])) * _repeated(parts["scales"].T, integers.shape[1])


def _quark(parts: Any, stated: Any) -> Any:
    if parts["weight"].dtype != np.int32:
        return _bytes(parts, stated)

    def columns(words: Any) -> Any:
        each = (words.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
        numbers = each[..., _AWQ].reshape(len(words), -1).T.astype(np.float64)
        return np.where(numbers > 7, numbers - 16, numbers) if stated["global_quant_config"]["weight"]["dtype"] == "int4" else numbers

    integers = columns(parts["weight"])
    zeros, scales = columns(parts["weight_zero_point"]), parts["weight_scale"].T
    return (integers - _repeated(zeros, integers.shape[1])) * _repeated(scales, integers.shape[1])


def _fp4(parts: Any, name: str, scales: Any) -> Any:
    packed = parts[name].view(np.uint8)
    values = _E2M1[np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)].astype(np.float64)
    return values * _repeated(scales, values.shape[1])


def _bytes(parts: Any, stated: Any) -> Any:
    """A byte for each weight, int8 or FP8; scales of the tensor, of outputs, of blocks of inputs or of 128 x 128."""
    scales = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    scales = np.exp2(scales.astype(np.float64) - 127) if scales.dtype == np.uint8 else scales.astype(np.float64)
    rows, inputs = parts["weight"].shape
    if scales.ndim == 4:
        scales = scales.reshape(scales.shape[0], scales.shape[2])
    scales = scales.reshape(-1, 1) if scales.ndim < 2 else scales
    high = rows // len(scales) if len(scales) in (1, rows) else 128
    wide = 128 if high == 128 and scales.shape[1] > 1 else inputs // scales.shape[1]
    return parts["weight"].astype(np.float64) * scales[np.arange(rows)[:, None] // high, np.arange(inputs) // wide]


def _compressed(parts: Any, stated: Any) -> Any:
    scales = parts["weight_scale"]
    if "weight" in parts:
        values, zeros = _bytes(parts, stated), parts.get("weight_zero_point", np.zeros(1))
        return values - _repeated(zeros * scales.astype(np.float64), values.shape[1]) if zeros.any() else values
    if "weight_shape" not in parts:
        if scales.dtype == np.uint8:
            return _fp4(parts, "weight_packed", np.exp2(scales.astype(np.float64) - 127))
        return _fp4(parts, "weight_packed", scales.astype(np.float32) / parts["weight_global_scale"])
    bits = next(iter(stated["config_groups"].values()))["weights"]["num_bits"]
    rows, inputs = parts["weight_shape"]
    integers = stream(parts["weight_packed"], bits)[:, :inputs] - 2 ** (bits - 1)
    zeros = np.zeros(scales.shape)
    if "weight_zero_point" in parts:
        zeros = stream(np.ascontiguousarray(parts["weight_zero_point"].T), bits).T[:rows] - 2 ** (bits - 1)
    return (integers - _repeated(zeros, inputs)) * _repeated(scales, inputs)


def _modelopt(parts: Any, stated: Any) -> Any:
    if parts["weight"].dtype != np.uint8:
        return _bytes(parts, stated)
    if parts["weight_scale"].dtype != np.float32:
        return _fp4(parts, "weight", parts["weight_scale"].astype(np.float32) * parts["weight_scale_2"])
    packed = parts["weight"].astype(np.int64)
    integers = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1, packed.shape[1])
    integers = np.where(integers > 7, integers - 16, integers)
    values = integers * _repeated(parts["weight_scale"], integers.shape[1])
    return values * parts["pre_quant_scale"].astype(np.float64) if "pre_quant_scale" in parts else values


def _mlx(parts: Any, stated: Any) -> Any:
    if "biases" not in parts:
        scales = parts["scales"]
        if stated["mode"] == "mxfp8":
            codes = parts["weight"].view(ml_dtypes.float8_e4m3fn)
            return codes.astype(np.float64) * _repeated(np.exp2(scales.astype(np.float64) - 127), codes.shape[1])
        is_power = stated["mode"] == "mxfp4"
        real = np.exp2(scales.astype(np.float64) - 127) if is_power else scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        return _fp4(parts, "weight", real)
    integers = stream(parts["weight"], stated["bits"]).astype(np.float64)
    return integers * _repeated(parts["scales"], integers.shape[1]) + _repeated(parts["biases"], integers.shape[1])


def _bitsandbytes(tensors: Any, layer: str) -> Any:
    packed = tensors[f"{layer}.weight"].reshape(-1)
    state = json.loads(next(value for name, value in tensors.items() if name.startswith(f"{layer}.weight.quant_state")).tobytes())
    values = tensors[f"{layer}.weight.quant_map"].astype(np.float64)[np.stack([packed >> 4, packed & 15], axis=-1)]
    return (values.reshape(-1, state["blocksize"]) * tensors[f"{layer}.weight.absmax"][:, None]).reshape(state["shape"])


def _torchao(parts: Any) -> Any:
    data = parts["qdata"]
    if data.dtype == ml_dtypes.float8_e4m3fn:
        return data.astype(np.float64) * parts["scale"]
    if parts["zero_point"].dtype == np.int8:
        return (data - _repeated(parts["zero_point"], data.shape[1])) * _repeated(parts["scale"], data.shape[1])
    integers = np.stack([data & 15, data.view(np.uint8) >> 4], axis=-1).reshape(len(data), -1).astype(np.float64)
    integers = np.where(integers > 7, integers - 16, integers)
    return integers * _repeated(parts["scale"].T, integers.shape[1]) + _repeated(parts["zero_point"].T, integers.shape[1])


_FORMULAS = {
    ("gptq", "qweight"): _gptq,
    ("awq", "qweight"): _awq,
    ("compressed-tensors", "weight_scale"): _compressed,
    ("fp8", "weight_scale_inv"): _bytes,
    ("modelopt", "weight_scale"): _modelopt,
    ("mlx", "scales"): _mlx,
    ("quark", "weight_scale"): _quark,
}
