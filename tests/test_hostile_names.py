"""Names in a model file are shown to people as text: a terminal obeys none of them, and none hides what else is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qconvert import check, convert, diff, load, roundtrip
from qconvert.cli import inspection, reports
from qconvert.errors import InvalidModelError, QConvertError, printable
from qconvert.graph.summary import format_graph

pytestmark = pytest.mark.end_to_end

EVIL = "\x1b]0;title\x07\x1b[31mred\x1b[2J\nforged: line\u202e[/x] [bold]:smile:\r\x85"
LONG = "n" * 1_000_000


def written(path: Path, *nodes: Any, output: str = "y", constants: tuple[Any, ...] = (), domains: tuple[str, ...] = ()) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph(list(nodes), "g", [x], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], list(constants))
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString())
    return path


def quantized(path: Path, name: str) -> Path:
    """Every name of it is `name` with a letter after it."""
    constants = (numpy_helper.from_array(np.float32(0.05), f"{name}s"), numpy_helper.from_array(np.int8(3), f"{name}z"))
    quantization = [f"{name}s", f"{name}z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *quantization], [f"{name}q"], name=f"{name}Q"),
        helper.make_node("DequantizeLinear", [f"{name}q", *quantization], [f"{name}d"], name=f"{name}D"),
        helper.make_node("Softmax", [f"{name}d"], [f"{name}y"], name=f"{name}S"),
    ]
    return written(path, *nodes, output=f"{name}y", constants=constants)


def custom(path: Path, name: str) -> Path:
    nodes = [helper.make_node(f"Foo{name}", ["x"], ["t"], name=name, domain=f"d{name}"), helper.make_node("Relu", ["t"], ["y"])]
    return written(path, *nodes, domains=(f"d{name}",))


def assert_harmless(text: str, longest: int = 20_000) -> None:
    assert not {c for c in text if not c.isprintable()} - {"\n"}
    assert not any(line.startswith("forged") for line in text.splitlines())
    assert 0 < len(text) < longest


@pytest.mark.parametrize("name", [EVIL, LONG], ids=["escape sequences", "a million characters"])
def test_reports(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, result = quantized(tmp_path / "m.onnx", name), tmp_path / "r.onnx"
    reports.print_conversion(convert(source, result), verbose=True)
    for path in (source, custom(tmp_path / "c.onnx", name)):
        inspection.print_inspection(path)
        assert_harmless(format_graph(load(path)))
    with reports.progress(False) as step:
        step(name, 1, 2)
    if name is not LONG:  # onnxruntime itself refuses such names
        reports.print_check(check(source, result, samples=1, per_op=True))
        reports.print_roundtrip(roundtrip(source, "qgraph", samples=1))
    out, err = capsys.readouterr()
    assert_harmless(out)
    assert_harmless("\n" + err)


@pytest.mark.parametrize("name", [EVIL, LONG], ids=["escape sequences", "a million characters"])
def test_errors(name: str, tmp_path: Path) -> None:
    with pytest.raises(QConvertError) as caught:
        convert(custom(tmp_path / "m.onnx", name), tmp_path / "r.tflite", custom="refuse")
    assert_harmless(str(caught.value))
    assert "Foo" in str(caught.value)
    assert name.replace("\n", "\\n") in json.loads(json.dumps(caught.value.to_dict()))["reason"]


def test_differences_and_json(tmp_path: Path) -> None:
    """In processes of their own: what diff prints, and JSON, which loses no character."""
    one, other = custom(tmp_path / "a.onnx", EVIL), quantized(tmp_path / "b.onnx", EVIL)
    done = subprocess.run([sys.executable, "-m", "qconvert", "diff", one, other], capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert_harmless(done.stdout.decode())
    assert diff(load(one), load(other))
    done = subprocess.run([sys.executable, "-m", "qconvert", "inspect", other, "--json"], capture_output=True, check=False, timeout=60)
    assert [f"{EVIL}y"] == json.loads(done.stdout)["outputs"]


def test_what_is_cut() -> None:
    assert printable("café \u4e2d\u6587 - ok\nsecond") == "café \u4e2d\u6587 - ok\nsecond"
    assert printable("a\x1b\nb", one_line=True) == "a\\x1b\\nb"
    cut = printable(f"the name {LONG} is taken")
    assert cut.startswith("the name nnn")
    assert cut.endswith("nnn is taken")
    assert "…(1,000,000 characters)…" in cut
    assert len(cut) < 450
    assert len(printable("n " * 500_000)) < 4_010


@pytest.mark.parametrize("place", ["node", "value", "operator", "domain", "producer", "metadata", "size"])
def test_names_that_are_not_utf8(place: str, tmp_path: Path) -> None:
    names = {key: f"{key}NAME" for key in ("node", "value", "operator", "domain", "producer", "metadata", "size")}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [names["size"], 4]) for name in ("x", "y"))
    nodes = [
        helper.make_node(names["operator"], ["x"], [names["value"]], name=names["node"], domain=names["domain"]),
        helper.make_node("Relu", [names["value"]], ["y"]),
    ]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(names["domain"], 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=imports, producer_name=names["producer"], ir_version=8)
    model.metadata_props.add(key=names["metadata"], value="v")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    load(path)
    path.write_bytes(model.SerializeToString().replace(names[place].encode(), names[place].encode()[:-1] + b"\xff"))
    with refused(InvalidModelError, "not-utf8"):
        load(path)
