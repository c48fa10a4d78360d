"""Files next to models: inputs as arrays and images, labels, names of classes, defaults of options and MNN's configurations."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.altering import Rng, altered_bytes, altered_json, altered_lines

FIXTURES = Path(__file__).parents[2] / "fixtures"
_TEXTS = {
    "labels.csv": "m.csv,1\n",
    "numbers.csv": "1\n",
    "names.txt": "cat\ndog\nhorse\n",
    "q.toml": '[convert]\ntarget = "ort-x86"\nopset = 17\nlossless = true\n[check]\nsamples = 3\npasses = ["a", "b"]\n',
    "config.json": json.dumps({"format": "RGB", "mean": [127.5] * 3, "normal": [0.0078] * 3, "width": 8, "height": 8, "path": ".",
                               "used_sample_num": 4, "feature_quantize_method": "KL", "weight_quantize_method": "MAX_ABS"}),
}  # fmt: skip


def data_seeds() -> dict[str, bytes]:
    """Small sound files by name; their suffixes say what they are."""
    from PIL import Image

    found = {name: text.encode() for name, text in _TEXTS.items()}
    array = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    stream = io.BytesIO()
    np.save(stream, array)
    found["x.npy"] = stream.getvalue()
    for name, save in (("x.npz", np.savez), ("y.npz", np.savez_compressed)):
        stream = io.BytesIO()
        save(stream, x=array)
        found[name] = stream.getvalue()
    for suffix in ("png", "bmp", "jpeg", "ppm"):
        stream = io.BytesIO()
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 7, 3)).astype(np.uint8)).save(stream, suffix)
        found[f"x.{suffix}"] = stream.getvalue()
    return found | {"x.bin": array.tobytes()}


def altered_data(data: bytes, rng: Rng) -> bytes:
    """A document, a text or bytes with changes."""
    if data[:1] == b"{":
        return altered_json(data, rng)
    return altered_lines(data, rng) if data.isascii() else altered_bytes(data, rng)


@cache
def _network() -> Any:
    """A network that takes images."""
    from qconvert import Graph, Op, Tensor

    tensors = {name: Tensor(name, "float32", (1, 3, 8, 8)) for name in "xy"}
    return Graph("g", tensors, (Op("Relu", ("x",), ("y",)),), ("x",), ("y",))


@cache
def _commands() -> dict[str, Any]:
    from qconvert.cli.app import all_commands

    return {str(item.name): item.callback for item in all_commands().registered_commands if item.callback is not None}


def read_data(path: Path) -> Any:
    """What the file is for, by its suffix."""
    from qconvert.calibration.mnn_config import read_mnn_config
    from qconvert.cli.startup import defaults_for
    from qconvert.data.labels import class_names, read_labels
    from qconvert.data.samples import InputFiles

    match path.suffix:
        case ".json":
            return read_mnn_config(path)
        case ".csv":
            return read_labels(path.parent, path)
        case ".txt":
            return class_names(path)
        case ".toml":
            return defaults_for(path, "convert", _commands(), [])
        case _:
            return list(InputFiles(_network(), [path], 4))
