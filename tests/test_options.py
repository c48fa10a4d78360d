"""Options are declared once, by passes and formats, and mean the same in Python, on the command line and in plugins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from inspect import getdoc, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from refusals import refused
from test_cli import run

import qconvert
from qconvert import Format, Graph, Option, Pass, Target, convert, load, save
from qconvert.cli.flags import with_flags
from qconvert.conversion import normalize, run_passes
from qconvert.conversion.normalizing import pipeline
from qconvert.errors import OptionError
from qconvert.plugins import declared_options, options_named, registry, target_named, temporary_plugin
from qconvert.plugins.options import (
    READING,
    ConvertOptions,
    ReadOptions,
    check_options,
    fill_defaults,
    parse_input_shapes,
    parse_options,
)  # fmt: skip

pytestmark = pytest.mark.formats

MODEL = Path(__file__).parent.parent / "fixtures" / "tiny_kws_dscnn_int8.tflite"


@pytest.fixture
def seen() -> Iterator[dict[str, Any]]:
    """A plugin with a format, a pass and a target that have options; what they were given."""
    found: dict[str, Any] = {}

    def read(path: Path, options: Mapping[str, Any]) -> Graph:
        found["read"] = dict(options)
        return load(path.read_text())

    def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> None:
        found["write"] = {name: value for name, value in options.items() if name != "provenance"}
        path.write_text(graph.name)

    def count(graph: Graph, target: Target, *, depth: int, shape: str) -> tuple[Graph, tuple[str, ...]]:
        found["pass"] = (depth, shape)
        return graph, ()

    names = Format("names", (".names",), "names of graphs", read, write, "named", read_options=(Option("strict", bool, False, "…"),),
                   write_options=(Option("depth", int, 3, "…"), Option("ending", str, "", "…", ("lf", "crlf"))))  # fmt: skip
    options = (Option("depth", int, 3, "…"), Option("shape", str, "tree", "…", ("tree", "list"), by_hand="list"))
    plugin = SimpleNamespace(
        qconvert_formats=qconvert.hookimpl(lambda: [names]),
        qconvert_passes=qconvert.hookimpl(lambda: [Pass("count", "counts", count, options=options)]),
        qconvert_targets=qconvert.hookimpl(lambda: [Target("named", "names", "names", passes=("count",))]),
    )
    with temporary_plugin(plugin, "names"):
        yield found


def test_a_value_reaches_all_that_declare_its_name(seen: dict[str, Any], tmp_path: Path) -> None:
    convert(MODEL, tmp_path / "a.names", depth="7", ending="lf")
    assert seen == {"pass": (7, "tree"), "write": {"depth": 7, "ending": "lf"}, "read": {"strict": False}}  # the result is read back
    (tmp_path / "b.names").write_text(str(MODEL))
    assert convert(tmp_path / "b.names", tmp_path / "b.qgraph", strict="yes").operators["Conv"] == 9
    assert seen["read"] == {"strict": True}
    load(tmp_path / "b.names")
    assert seen["read"] == {"strict": False}
    load(tmp_path / "b.names", strict=True)
    assert seen["read"] == {"strict": True}
    save(load(MODEL), tmp_path / "c.names", depth=4)
    assert seen["write"] == {"depth": 4, "ending": ""}


def test_a_pass_by_hand_has_its_own_default(seen: dict[str, Any]) -> None:
    run_passes(load(MODEL), ["count"])
    assert seen["pass"] == (3, "list")
    run_passes(load(MODEL), ["count"], depth=5, shape="tree")
    assert seen["pass"] == (5, "tree")
    normalize(load(MODEL), target_named("named"))
    assert seen["pass"] == (3, "tree")


def test_float_io_by_hand_does_what_its_name_says() -> None:
    graph, _ = run_passes(load(MODEL), ["float_io"])
    assert graph[graph.inputs[0]].dtype == graph[graph.outputs[0]].dtype == "float32"
    graph, _ = normalize(load(MODEL), target_named("generic"))
    assert graph[graph.inputs[0]].dtype == "int8"


@pytest.mark.parametrize(
    ("options", "reason", "remedy"),
    [
        (
            {"opsett": 17},
            "nothing in a conversion from tflite to onnx takes the option 'opsett' (nearest: 'opset')",
            "Known options: batch, biases, calibration_cache, custom, dynamic, external_data, form, guards,",
        ),
        ({"no_float": True}, "nothing in a conversion from tflite to onnx takes the option 'no_float'", "io_layout, numerics, opset"),
        ({"opset": "x"}, "the option opset takes a whole number, not 'x'", ""),
        ({"opset": True}, "the option opset takes a whole number, not True", ""),
        ({"external_data": "perhaps"}, "the option external_data takes true or false, not 'perhaps'", ""),
        ({"io_layout": "nhcw"}, "the option io_layout is 'nhcw'", "Use nchw or nhwc."),
        ({"numerics": "slow"}, "the option numerics is 'slow'", "Use exact or strict or fast."),
        ({"io": "integers"}, "the option io is 'integers'", "Use float or integer."),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], reason: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        convert(MODEL, tmp_path / "a.onnx", **options)
    assert raised.value.reason == reason and remedy in raised.value.remedy
    assert not (tmp_path / "a.onnx").exists()


def test_an_option_at_its_default_is_taken_by_every_conversion(tmp_path: Path) -> None:
    convert(MODEL, tmp_path / "a.onnx", no_float=False)
    with refused(OptionError, "unknown-option", holds=("strict",)):
        load(MODEL, strict=True)
    with refused(OptionError, "unknown-option", holds=("opset",)):
        normalize(load(MODEL), None, opset=17)


@pytest.mark.end_to_end
def test_the_command_line_spells_the_same_options(tmp_path: Path) -> None:
    flagged, named = tmp_path / "a.onnx", tmp_path / "b.onnx"
    assert run("convert", MODEL, flagged, "--opset", "21", "--io-layout", "nchw", "--io", "float", "-q").returncode == 0
    assert run("convert", MODEL, named, "-O", "opset=21", "-O", "io-layout=nchw", "-O", "io=float", "-q").returncode == 0
    convert(MODEL, tmp_path / "c.onnx", opset=21, io_layout="nchw", io="float")
    assert flagged.read_bytes() == named.read_bytes() == (tmp_path / "c.onnx").read_bytes()
    for words, reason in (
        (("-O", "opset"), "'opset' is not an option"),
        (
            ("-O", "depth=3"),
            "takes the option 'depth'\nKnown options: batch, biases, calibration_cache, custom, dynamic, external_data",
        ),
        (("-O", "opset=17", "-O", "opset=18"), "the option opset is given twice"),
        (("-O", "opset=17", "--opset", "18"), "the option opset is given twice"),
        (("-O", "force=yes"), "force is no option of a format or a pass"),
        (("-O", "source=x.onnx"), "source is no option of a format or a pass"),
    ):
        done = run("convert", MODEL, tmp_path / "d.onnx", *words)
        assert done.returncode == 2 and reason in done.stderr


@pytest.mark.end_to_end
def test_passes_and_formats_list_their_options() -> None:
    passes = {item["name"]: item for item in json.loads(run("passes", "--json").stdout)["items"]}
    (layout,) = passes["assign_layout"]["options"]
    assert (layout["name"], layout["type"], layout["default"], layout["choices"]) == ("io_layout", "str", "", ["nchw", "nhwc"])
    assert "match_scales" in passes["float_io"]["after"] and passes["isolate_float"]["requires"] == ["absorbed"]
    formats = {item["name"]: item for item in json.loads(run("formats", "--json").stdout)["formats"]}
    beside = {"calibration_cache", "trt_version", "trt_calibrator", "weights_by_cpu"}
    assert {item["name"] for item in formats["onnx"]["write_options"]} == {"opset", "external_data", "form", "numerics", "guards", *beside}
    assert "nearest" in run("passes").stdout and "onnx, writing" in run("formats").stdout


def test_options_of_one_name_are_declared_alike() -> None:
    """What a flag says has to be true of each pass and format that takes it; the forms of a format are its own."""
    declared = [option for item in registry.passes().values() for option in item.options]
    declared += [option for item in registry.formats().values() for option in (*item.read_options, *item.write_options)]
    known = declared_options()
    assert all(replace(option, choices=(), by_hand=None) == replace(known[option.name], choices=(), by_hand=None) for option in declared)


def test_texts_and_values() -> None:
    number, ratio = Option("n", int, 1, ""), Option("r", float, 0.5, "")
    assert parse_options(["a=b=c", "io-float= yes "]) == {"a": "b=c", "io_float": "yes"}
    assert check_options({"n": "-4", "r": "2.5e-1"}, (number, ratio), "nothing") == {"n": -4, "r": 0.25}
    assert check_options({"r": 3.0}, (number, ratio), "nothing") == {"r": 3.0}
    assert fill_defaults({"n": 2, "z": 9}, (number, ratio)) == {"n": 2, "r": 0.5}


@pytest.mark.parametrize(("name", "type"), [("lambda", int), ("two words", str), ("sizes", list)])
def test_an_option_that_nobody_could_give_is_refused(name: str, type: type) -> None:
    with pytest.raises(ValueError, match="an option has a name like io_layout and is str, int, float or bool"):
        Option(name, type, None, "…")


def test_a_wrong_order_of_passes_is_refused() -> None:
    with pytest.raises(OptionError) as raised:
        pipeline(("match_scales", "isolate_float"))
    assert raised.value.reason == "the pass match_scales has to run after isolate_float"
    assert raised.value.remedy == "Put isolate_float before match_scales."
    assert [item.name for item in pipeline(("merge_reshapes", "match_scales", "merge_reshapes"))][1] == "match_scales"
    with refused(OptionError, "pass-requirement", holds=("isolate_float", "absorbed")):
        pipeline(("isolate_float",), given=())
    assert len(pipeline(("absorb_quantization", "isolate_float"), given=())) == 2
    backwards = target_named("tflite").derive(name="backwards", passes=target_named("tflite").passes[::-1])
    with pytest.raises(OptionError, match="has to run after"):
        normalize(load(MODEL), backwards)
    for target in registry.targets().values():
        pipeline(target.passes)


def test_types_of_options_are_those_that_are_declared() -> None:
    """What an editor completes is what a conversion takes, with the same types and choices."""
    reading = {option.name: option for item in registry.formats().values() for option in (*READING, *item.read_options)}
    declared = {**declared_options(), **reading}
    assert set(get_type_hints(ReadOptions)) == set(reading)
    assert set(get_type_hints(ConvertOptions)) == set(declared)
    for name, hint in get_type_hints(ConvertOptions).items():
        option = declared[name]
        if get_origin(hint) is Literal and name != "form":  # each format has forms of its own
            assert set(get_args(hint)) == {*option.choices, option.default}, name
        elif not option.many:
            assert not option.choices or name == "form"
            assert option.type in (hint, *get_args(hint)) or name == "form", name


@pytest.mark.end_to_end
def test_values_that_do_nothing_are_refused(tmp_path: Path) -> None:
    with refused(OptionError, "too-small", holds=("batch", -1)):
        convert(MODEL, tmp_path / "a.onnx", batch=-1)
    done = run("convert", MODEL, tmp_path / "a.onnx", "--batch", "0")
    assert done.returncode == 2 and "--batch" in done.stderr
    with refused(OptionError, "idle-option", holds=("trt-version", "calibration-cache")):
        convert(MODEL, tmp_path / "a.onnx", trt_version="8.6.1")
    assert list(tmp_path.iterdir()) == []


def test_types_of_calibration_are_its_keywords() -> None:
    from qconvert.calibration.methods import METHODS
    from qconvert.calibration.settings import CalibrateOptions, Settings

    keywords = {"format", *(item.name for item in fields(Settings))} - {"method_options"}
    methods = {option.name for method in METHODS.values() for option in method.options}
    assert set(get_type_hints(CalibrateOptions)) - set(get_type_hints(ReadOptions)) == keywords | methods


def test_options_that_the_name_of_a_pass_brings() -> None:
    assert options_named("power_of_two:rounding=mse, edges=keep") == {"rounding": "mse", "edges": "keep"}
    assert options_named("power_of_two") == {}
    with refused(OptionError, "malformed-option"):
        options_named("power_of_two:")
    with refused(OptionError, "duplicate-option", holds=("rounding", "power_of_two")):
        run_passes(load(MODEL), ["power_of_two:rounding=mse"], rounding="up")


def test_flags_are_made_when_the_signature_of_a_command_is_asked_for() -> None:
    asked: list[str] = []

    def command(model: str, **options: str) -> None:
        """Say it."""
        asked.append(f"{model} {options}")

    def list_options() -> dict[Option, str | None]:
        asked.append("options")
        return {Option("tone", str, None, "How."): "Options"}

    flagged = with_flags(command, list_options)
    assert asked == [] and getdoc(flagged) == "Say it."
    assert [*signature(flagged).parameters] == [*flagged.__annotations__] == ["model", "tone"]
    flagged(model="a", tone=None)
    flagged(model="b", tone="low")
    assert asked == ["options", "a {}", "b {'tone': 'low'}"]


@pytest.mark.parametrize(
    ("text", "inputs", "expected"),
    [
        ("1,3,h,w; 1,10", None, {0: ((1, 3, "h", "w"), ""), 1: ((1, 10), "")}),
        ("x=1,3:quint8(0.02,128); y=:int64; z=", None, {"x": ((1, 3), "quint8(0.02,128)"), "y": ((), "int64"), "z": ((), "")}),
        ("1,3; b.1;c=2,4;", ("a", "b.1;c"), {"a": ((1, 3), ""), "b.1;c": ((2, 4), "")}),
        (" ; ", ("a",), {}),
    ],
)
def test_input_shapes_by_names_and_places(text: str, inputs: tuple[str, ...] | None, expected: dict[str | int, Any]) -> None:
    assert parse_input_shapes(text, inputs) == expected


@pytest.mark.parametrize(
    ("text", "inputs", "rule"),
    [
        ("1,2.5", None, "not-a-size"),
        (f"1,{2**40}", None, "not-a-size"),
        ("x=1,2; x=1,3", None, "shape-twice"),
        ("x=1,2:int8", ("x",), "not-a-size"),
        ("1,2; x=1,3", ("x",), "shape-twice"),
        ("y=1,2", ("x",), "unknown-input"),
        ("1,2; 3", ("x",), "too-many-shapes"),
    ],
)
def test_input_shapes_that_are_none(text: str, inputs: tuple[str, ...] | None, rule: str) -> None:
    with refused(OptionError, rule):
        parse_input_shapes(text, inputs)
