"""Models in several files, of which one is damaged: state_dicts next to a graph, data next to ONNX, parts of a partition, files of plugins.

A set is one zip archive of its files here; the first is the one that is read.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from onnx_nodes import model_of

from fuzz.altering import Rng, altered_bytes, altered_json, altered_lines, altered_tree, one
from fuzz.model_files import altered_onnx
from fuzz.torch_files import altered_archive

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures"
#: Plugins whose files are read without the tool that they belong to.
_PLUGINS = ("ncnn", "openvino", "aimet", "scale_table")


def packed(files: Mapping[str, bytes]) -> bytes:
    """A set of files as one."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 0, 0, 0, 0, 0)), content)
    return target.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """The files of a set by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def altered_set(data: bytes, rng: Rng) -> bytes:
    """The set with one of its files altered, mostly the first, or missing."""
    files = unpacked(data)
    first, *others = files
    name = one(rng, others) if others and rng.random() < 0.3 else first
    if name != first and rng.random() < 0.05:
        del files[name]
    elif files[name]:
        alter = altered_bytes if rng.random() < 0.3 else _BY_SUFFIX.get(Path(name).suffix, altered_bytes)
        files[name] = alter(files[name], rng)
    return packed(files)


def _altered_safetensors(data: bytes, rng: Rng) -> bytes:
    """The header with other values, and its length set right."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    altered_tree(header, rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


_BY_SUFFIX = {
    ".json": altered_json, ".onnx": altered_onnx, ".param": altered_lines, ".pth": altered_archive, ".safetensors": _altered_safetensors,
    ".scales": altered_lines, ".xml": altered_lines,
}  # fmt: skip


def state_seeds() -> dict[str, bytes]:
    """State_dicts with the graph that each belongs to."""
    graphs = {"classifier": (FIXTURES / "torch" / "classifier" / "float.onnx").read_bytes(), "perceptron": _perceptron()}
    paths = {folder: sorted((FIXTURES / "torch" / folder).iterdir()) for folder in graphs}
    return {
        path.name: packed({f"m{path.suffix}": path.read_bytes(), "float.onnx": graphs[folder]})
        for folder, found in paths.items()
        for path in found
        if path.suffix in (".pth", ".safetensors")
    }


def _perceptron() -> bytes:
    """The float network of fixtures/torch/perceptron."""
    from onnx import helper, numpy_helper

    sizes, layers = (64, 32, 16, 4), ("first", "second", "third")
    nodes, constants, data = [], [], "x"
    for name, given, made in zip(layers, sizes, sizes[1:], strict=False):
        shapes = {f"{name}.weight": (made, given)} | ({} if name == "second" else {f"{name}.bias": (made,)})
        constants += [numpy_helper.from_array(np.ones(shape, np.float32), key) for key, shape in shapes.items()]
        nodes.append(helper.make_node("Gemm", [data, *shapes], [name], transB=1))
        data = name
        if name != "third":
            nodes.append(helper.make_node("Relu", [name], [data := f"{name}/relu"]))
    ports = [helper.make_tensor_value_info(name, 1, (3, size)) for name, size in (("x", 64), ("third", 4))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    model: bytes = model_of(graph).SerializeToString()
    return model


def read_state(path: Path) -> Any:
    """The parameters in a file placed in the graph next to it."""
    from qconvert import load

    return load(path, graph=str(path.parent / "float.onnx"))


def external_seeds() -> dict[str, bytes]:
    """ONNX models whose constants are in a file next to them."""
    from qconvert import convert

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tiny_ad_toycar_int8", "tflm_seanet_conv_int16x8"):
            for form in ("qdq", "qoperator"):
                place = Path(folder, form)
                place.mkdir(exist_ok=True)
                try:
                    convert(FIXTURES / f"{name}.tflite", place / "m.onnx", external_data=True, force=True, form=form)
                except ValueError:
                    continue
                found[f"{name} {form}"] = _folder(place, "m.onnx")
    return found


def _folder(place: Path, first: str) -> bytes:
    files = {path.name: path.read_bytes() for path in sorted(place.iterdir(), key=lambda path: path.name != first)}
    for path in place.iterdir():
        path.unlink()
    return packed(files)


def partition_seeds() -> dict[str, bytes]:
    """Models cut into files of their own."""
    from qconvert import partition

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, targets in enumerate((["tflite-micro"], ["tensorrt", "tflite"])):
            place = Path(folder, str(number))
            partition(FIXTURES / "tflm_keyword_svdf_int8.tflite", targets, split=place)
            found[" ".join(targets)] = _folder(place, "manifest.json")
    return found


@cache
def _with_plugins() -> tuple[str, ...]:
    """Loads the plugins of the repository that need no tool to read; returns the names of their packages."""
    from qconvert.plugin import register

    for name in _PLUGINS:
        sys.path.append(str(ROOT / "plugins" / f"qconvert-{name.replace('_', '-')}"))
        register(import_module(f"qconvert_{name}"), f"qconvert-{name}")
    return _PLUGINS


def plugin_seeds() -> dict[str, bytes]:
    """Networks of ncnn and OpenVINO, encodings of AIMET and a table of scales with the network that they belong to."""
    from qconvert import apply, convert, extract_scales, load, load_encodings, save_encodings

    _with_plugins()
    found = {}
    for suffix, plugin in ((".param", "ncnn"), (".xml", "openvino")):
        for path in sorted((ROOT / "plugins" / f"qconvert-{plugin}" / "tests" / "data").glob(f"*{suffix}")):
            if path.with_suffix(".bin").stat().st_size < 60_000:
                found[path.name] = packed({f"m{suffix}": path.read_bytes(), "m.bin": path.with_suffix(".bin").read_bytes()})
    network = FIXTURES / "mnn" / "float.onnx"
    with tempfile.TemporaryDirectory() as folder:
        for source in ("onnx/torch_pt2e_x86_attention.onnx", "tiny_ad_toycar_int8.tflite"):
            convert(FIXTURES / source, Path(folder, "m.param"))
            found[f"{source} in ncnn"] = _folder(Path(folder), "m.param")
        graph, encodings = extract_scales(apply(load(network), load_encodings(FIXTURES / "mnn" / "KL_dump.json")))
        for name, options in {"aimet 1.json": {}, "aimet 2.json": {"aimet_version": "2.0.0"}, "t.scales": {}}.items():
            path = Path(folder, f"m{Path(name).suffix}")
            save_encodings(encodings, path, "scales" if path.suffix == ".scales" else "aimet", graph=graph, **options)
            found[name] = packed({path.name: path.read_bytes(), "float.onnx": network.read_bytes()})
            path.unlink()
    return found


def read_plugin(path: Path) -> Any:
    """The network of a file, or the one next to it with the scales of the file."""
    from qconvert import apply, load, load_encodings

    _with_plugins()
    beside = path.parent / "float.onnx"
    return apply(load(beside), load_encodings(path)) if path.suffix in (".json", ".scales") else load(path)
