"""Plugins that a program registers: what they may give, what they may take the place of, and the names that they may rely on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from refusals import refused

import qconvert
from qconvert import Format, Op, Pass, Runtime, Target, register
from qconvert import plugin as published
from qconvert.errors import FileAccessError, OptionError
from qconvert.kernels import Kernel, Kernels
from qconvert.plugins import format_of, formats, host, list_plugins, operators, passes, targets

pytestmark = pytest.mark.formats

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Plugins that a test registers are gone after it."""
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
    assert list_plugins()[-1] == host.LoadedPlugin("mine", "builtins")


def test_the_name_of_another_is_taken_where_the_plugin_says_so_alone() -> None:
    taken = {
        "formats": Format("onnx", (".onnx",), "another"),
        "targets": Target("ort-x86", "onnx", "another"),
        "passes": Pass("fuse_pad", "another", same),
        "runtimes": Runtime("litert", ("tflite",), "another", "", same, same, ("x",)),  # type: ignore[arg-type]
    }
    for hook, item in taken.items():
        with refused(OptionError, "plugin-fails", holds=("mine", f"qconvert_{hook}", f"replaces={item.name!r}")):
            register(plugin("mine", **{hook: [item]}))
    assert formats()["onnx"].summary != "another" and passes()["fuse_pad"].summary != "another"
    ours = Target("ort-x86", "onnx", "another", replaces="ort-x86")
    register(plugin("mine", targets=[ours], passes=[Pass("fuse_pad", "another", same, replaces="fuse_pad")]))
    assert targets()["ort-x86"] is ours and passes()["fuse_pad"].summary == "another"
    assert list_plugins()[-1].replaces == ("target ort-x86", "pass fuse_pad")
    assert ours.derive(name="other").replaces == ""


def test_a_function_for_an_operator_says_what_it_replaces() -> None:
    def table(function: Any) -> Any:
        return lambda format, direction: {"CONV_2D": function} if (format, direction) == ("tflite", "read") else {}

    def read(reading: Any) -> None: ...

    with refused(OptionError, "plugin-fails", holds=("CONV_2D",)):
        register(plugin("mine", operators=table(read)))
    register(plugin("mine", operators=table(published.replaces("CONV_2D")(read))))
    assert operators("tflite", "read")["CONV_2D"] is read
    assert list_plugins()[-1].replaces == ("tflite operator CONV_2D",)


def test_a_suffix_of_two_formats_is_an_error_that_names_both() -> None:
    register(plugin("mine", formats=[Format("mine", (".onnx",), "")]))
    with refused(OptionError, "ambiguous-suffix", holds=(".onnx", "onnx and mine")):
        qconvert.load(next((FIXTURES / "onnx").glob("*.onnx")))
    resnet = FIXTURES / "tiny_resnet_cifar10_int8.tflite"
    assert qconvert.load(resnet).ops


@pytest.mark.parametrize(
    ("version", "broken"),
    [
        ("1.0", ""),
        ("2.0", ("plugin-fails", "2.0")),
        ("1.9", ("plugin-fails", "1.9")),
        ("0.1", ("plugin-fails", "0.1")),
        ("one", ("plugin-fails",)),
    ],
)
def test_the_version_that_a_plugin_is_made_for(version: str, broken: tuple[Any, ...]) -> None:
    made = plugin("mine", passes=[Pass("nothing", "", same)])
    made.QCONVERT_API = version  # type: ignore[attr-defined]
    if not broken:
        register(made)
        assert "nothing" in passes()
        return
    with refused(OptionError, broken[0], holds=broken[1:]):
        register(made)
    assert "nothing" not in passes() and "mine" not in {item.name for item in list_plugins()}


@pytest.mark.parametrize(
    ("hooks", "broken"),
    [
        ({}, ("no-hook",)),
        ({"passes": ["x"]}, ("plugin-fails", "x")),
        ({"passes": [Pass("a", "", same), Pass("a", "", same)]}, ("plugin-fails", "a")),
        ({"formats": lambda: [Format("a", ".a", "")]}, ("plugin-fails", ".a")),  # type: ignore[arg-type]
        ({"formats": lambda: [Format("a", ("a",), "")]}, ("plugin-fails", "a")),
        ({"runtimes": lambda: [Runtime("a", (), "", "", same, same, ())]}, ("plugin-fails", "kernels")),  # type: ignore[arg-type]
        ({"runtimes": lambda: [Runtime("a", (), "", "", same, Kernels(), ("x",))]}, ("plugin-fails", "rows")),  # type: ignore[arg-type]
        ({"operators": lambda format, direction: {"X": 3}}, ("plugin-fails", "X", 3)),
        ({"operators": lambda format: {}[format]}, ("plugin-fails", "KeyError")),
        ({"kinds": ["x"]}, ("plugin-fails", "AttributeError")),
    ],
)
def test_a_plugin_that_fails_is_not_registered(hooks: dict[str, Any], broken: tuple[Any, ...]) -> None:
    with refused(OptionError, broken[0], holds=broken[1:]):
        register(plugin("mine", **hooks))
    assert [item for item in list_plugins() if item.name == "mine"] == []
    register(plugin("mine", passes=[Pass("nothing", "", same)]))
    with refused(OptionError, "duplicate-plugin", holds=("mine",)):
        register(plugin("mine", passes=[Pass("other", "", same)]))


def test_a_function_of_any_name_may_say_which_hook_it_is() -> None:
    made = ModuleType("mine")
    made.give = qconvert.hookimpl(specname="qconvert_passes")(lambda: [Pass("nothing", "", same)])  # type: ignore[attr-defined]
    register(made)
    assert "nothing" in passes()


def test_what_is_marked_as_a_hook_that_does_not_exist_is_refused() -> None:
    made = plugin("mine", formats=[Format("mine", (".mine",), "")])
    made.passes = qconvert.hookimpl(lambda: [Pass("nothing", "", same)])  # type: ignore[attr-defined]
    with refused(OptionError, "plugin-fails", holds=("unknown hook 'passes'",)):
        register(made)


def test_a_row_of_a_kind_that_does_not_exist_is_refused() -> None:
    with refused(OptionError, "unknown-kind", holds=("nearest: 'Gemm'",)):
        Kernels((Kernel(("Conv", "Gem"), ("int8",)),)).lacks(Op("Conv", ("x", "w"), ("y",)))


def test_a_plugin_that_is_there_for_a_while() -> None:
    with published.temporary_plugin(plugin("mine", passes=[Pass("nothing", "", same)])):
        assert "nothing" in passes()
    assert "nothing" not in passes() and "mine" not in {item.name for item in list_plugins()}


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
    with refused(OptionError, "wrong-result", holds=("mine", 4)):
        qconvert.convert(model, tmp_path / "result.mine")
    assert not (tmp_path / "result.mine").exists()
    with refused(OptionError, "wrong-result", holds=("mine", "None")):
        qconvert.load(tmp_path / "model.mine")
    with refused(OptionError, "wrong-result", holds=("alone", "Graph")):
        qconvert.convert(model, tmp_path / "result.onnx", passes=["alone"])


def test_a_reader_of_scales_returns_scales_and_its_file_is_there(tmp_path: Path) -> None:
    mine = Format("mine", (".mine",), "", content="encodings", read_encodings=lambda path, options: path.read_text())  # type: ignore[arg-type, return-value]
    register(plugin("mine", formats=[mine]))
    with refused(FileAccessError, "not-readable", holds=("absent.mine",)):
        qconvert.load_encodings(tmp_path / "absent.mine")
    (tmp_path / "scales.mine").write_text("x")
    with refused(OptionError, "wrong-result", holds=("mine", "x")):
        qconvert.load_encodings(tmp_path / "scales.mine")
    with refused(OptionError, "unknown-suffix", holds=("mine", ".tflite")):
        qconvert.load(tmp_path / "scales.mine")


def test_a_model_of_a_runtime_has_what_a_run_needs(tmp_path: Path) -> None:
    runtime: Any = Runtime("mine", ("onnx",), "", "", lambda file: object(), lambda kernels: Kernels(), ("x",))  # type: ignore[arg-type, return-value]
    register(plugin("mine", runtimes=[runtime]))
    qconvert.convert(FIXTURES / "tiny_resnet_cifar10_int8.tflite", tmp_path / "result.onnx")
    with refused(OptionError, "wrong-result", holds=("mine", "note")):
        qconvert.run(tmp_path / "result.onnx", kernels="mine")
