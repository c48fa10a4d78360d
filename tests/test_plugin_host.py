"""Plugins that a program registers: what they may give, what they may take the place of, and the names that they may rely on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import qconvert
from qconvert import Format, Pass, Runtime, Target, register
from qconvert import plugin as published
from qconvert.errors import OptionError
from qconvert.plugins import format_of, formats, host, loaded, operators, passes, targets

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Plugins that a test registers are gone behind it."""
    yield
    host._host.cache_clear()
    host._forget()


def plugin(name: str, **hooks: Any) -> ModuleType:
    """A module with hooks, each of which gives what is named."""
    module = ModuleType(name)
    for hook, given in hooks.items():
        function = (lambda items: lambda: items)(given) if not callable(given) else given
        setattr(module, f"qconvert_{hook}", qconvert.hookimpl(function))
    return module


def same(graph: Any, target: Any) -> Any:
    return graph, ()


def test_what_is_registered_is_there_at_once() -> None:
    before = set(passes())
    register(plugin("mine", passes=[Pass("nothing", "", same)], formats=[Format("mine", (".mine",), "")]))
    assert set(passes()) - before == {"nothing"}
    assert format_of(Path("x.mine")).name == "mine"
    assert loaded()[-1] == host.LoadedPlugin("mine", "builtins")


def test_the_name_of_another_is_taken_where_the_plugin_says_so_alone() -> None:
    taken = {
        "formats": Format("onnx", (".onnx",), "another"),
        "targets": Target("ort-x86", "onnx", "another"),
        "passes": Pass("fuse_pad", "another", same),
        "runtimes": Runtime("litert", ("tflite",), "another", "", None, None, ("x",)),  # type: ignore[arg-type]
    }
    for hook, item in taken.items():
        with pytest.raises(
            OptionError, match=rf"'mine' fails: in qconvert_{hook}: gives the \w+ '{item.name}' as .*replaces='{item.name}'"
        ):
            register(plugin("mine", **{hook: [item]}))
    assert formats()["onnx"].summary != "another" and passes()["fuse_pad"].summary != "another"
    ours = Target("ort-x86", "onnx", "another", replaces="ort-x86")
    register(plugin("mine", targets=[ours], passes=[Pass("fuse_pad", "another", same, replaces="fuse_pad")]))
    assert targets()["ort-x86"] is ours and passes()["fuse_pad"].summary == "another"
    assert loaded()[-1].replaces == ("target ort-x86", "pass fuse_pad")
    assert ours.derive(name="other").replaces == ""


def test_a_function_for_an_operator_says_what_it_replaces() -> None:
    def table(function: Any) -> Any:
        return lambda format, direction: {"CONV_2D": function} if (format, direction) == ("tflite", "read") else {}

    def read(reading: Any) -> None: ...

    with pytest.raises(OptionError, match=r"gives the tflite operator 'CONV_2D' as tflite does; with replaces='CONV_2D'"):
        register(plugin("mine", operators=table(read)))
    register(plugin("mine", operators=table(published.replaces("CONV_2D")(read))))
    assert operators("tflite", "read")["CONV_2D"] is read
    assert loaded()[-1].replaces == ("tflite operator CONV_2D",)


def test_a_suffix_of_two_formats_is_an_error_that_names_both() -> None:
    register(plugin("mine", formats=[Format("mine", (".onnx",), "")]))
    with pytest.raises(
        OptionError, match=r"the suffix \.onnx belongs to the formats onnx and mine; by its content it is a file of the format onnx"
    ):
        qconvert.load(next((FIXTURES / "onnx").glob("*.onnx")))
    resnet = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    assert qconvert.load(resnet).ops


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("1.0", ""),
        ("2.0", "made for version 2.0"),
        ("1.9", "made for version 1.9"),
        ("0.1", "made for version 0.1"),
        ("one", "not two numbers"),
    ],
)
def test_the_version_that_a_plugin_is_made_for(version: str, problem: str) -> None:
    made = plugin("mine", passes=[Pass("nothing", "", same)])
    made.QCONVERT_API = version  # type: ignore[attr-defined]
    if not problem:
        register(made)
        assert "nothing" in passes()
        return
    with pytest.raises(OptionError, match=problem):
        register(made)
    assert "nothing" not in passes() and "mine" not in {item.name for item in loaded()}


@pytest.mark.parametrize(
    ("hooks", "problem"),
    [
        ({}, "has no hook"),
        ({"passes": ["x"]}, "'x' is no Pass"),
        ({"passes": [Pass("a", "", same), Pass("a", "", same)]}, "gives the pass 'a' twice"),
        ({"formats": lambda: [Format("a", ".a", "")]}, "the format a has the suffixes '.a'"),  # type: ignore[arg-type]
        ({"formats": lambda: [Format("a", ("a",), "")]}, r"the format a has the suffixes \('a',\)"),
        ({"runtimes": lambda: [Runtime("a", (), "", "", None, None, ())]}, "the runtime a has .. as its kernels"),  # type: ignore[arg-type]
        ({"operators": lambda format, direction: {"X": 3}}, "the function of 'X' is 3"),
        ({"operators": lambda format: {}[format]}, "KeyError"),
        ({"kinds": ["x"]}, "AttributeError"),
    ],
)
def test_a_plugin_that_fails_is_not_registered(hooks: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        register(plugin("mine", **hooks))
    assert [item for item in loaded() if item.name == "mine"] == []
    register(plugin("mine", passes=[Pass("nothing", "", same)]))
    with pytest.raises(OptionError, match="there is a plugin 'mine' already"):
        register(plugin("mine", passes=[Pass("other", "", same)]))


def test_a_plugin_that_is_there_for_a_while() -> None:
    with published.registered(plugin("mine", passes=[Pass("nothing", "", same)])):
        assert "nothing" in passes()
    assert "nothing" not in passes() and "mine" not in {item.name for item in loaded()}


def test_every_published_name_is_there() -> None:
    assert sorted(published.__all__) == dir(published) and len(set(published.__all__)) == len(published.__all__)
    assert {name for name in published.__all__ if getattr(published, name) is None} == set()
    assert all(getattr(qconvert, name) is not None for name in dir(qconvert))
    with pytest.raises(AttributeError, match=r"module 'qconvert\.plugin' has no attribute 'absent'"):
        published.absent  # noqa: B018


def test_what_functions_of_a_plugin_return_is_looked_at(tmp_path: Path) -> None:
    model = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    (tmp_path / "model.mine").write_text("x")

    def write(graph: Any, path: Path, options: Any) -> Any:
        return path.write_text("text")

    wrong: Any = Format("mine", (".mine",), "", read=lambda path, options: None, write=write)  # type: ignore[arg-type, return-value]
    register(plugin("mine", formats=[wrong], passes=[Pass("alone", "", lambda graph, target: graph)]))  # type: ignore[arg-type, return-value]
    with pytest.raises(OptionError, match="mine returned 4"):
        qconvert.convert(model, tmp_path / "result.mine")
    assert not (tmp_path / "result.mine").exists()
    with pytest.raises(OptionError, match="the reader of mine returned None"):
        qconvert.load(tmp_path / "model.mine")
    with pytest.raises(OptionError, match="the pass alone returned Graph"):
        qconvert.convert(model, tmp_path / "result.onnx", passes=["alone"])
