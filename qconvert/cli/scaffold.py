"""The commands `plugins`, and `plugin new`: a package with a plugin, and tests of it that pass."""

from __future__ import annotations

import keyword
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qconvert.cli.flags import DebugFlag, JsonFlag
from qconvert.cli.outcome import print_document
from qconvert.errors import OptionError

_PROJECT = """\
[build-system]
requires = ["hatchling>=1.24"]
build-backend = "hatchling.build"

[project]
name = "qconvert-$name"
version = "0.1.0"
description = "A qconvert plugin"
requires-python = ">=3.11"
dependencies = ["qconvert>=0.1"]

[project.optional-dependencies]
test = ["pytest>=8", "mypy>=1.11"]

[project.entry-points.qconvert]
$name = "qconvert_$module"

[tool.hatch.build.targets.wheel]
packages = ["qconvert_$module"]

[tool.mypy]
strict = true
packages = ["qconvert_$module"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_CODE = '''\
"""A format for numbers next to a model, a target, a pass and a runtime: keep what you need."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qconvert.plugin import (
    Array,
    Change,
    Format,
    Graph,
    Kernel,
    Kernels,
    ModelFile,
    Pass,
    Rewriter,
    Runtime,
    Storage,
    Target,
    constant_tolerance,
    evaluate,
    hookimpl,
    load,
)

#: The version of qconvert's plugin interface that this was made for.
QCONVERT_API = "$api"


def write(graph: Graph, path: Path, options: Mapping[str, Any]) -> tuple[Change, ...]:
    """How often each kind of operator occurs, as JSON."""
    counts = Counter(op.kind for op in graph)
    path.write_text(json.dumps(counts, indent=1), encoding="utf-8")
    return (Change(f"kinds of operators that are counted: {len(counts)}", exact=True),)


def drop_identities(graph: Graph, target: Target | None) -> tuple[Graph, tuple[str, ...]]:
    """Readers of an Identity read what it reads."""
    rewriter, count = Rewriter(graph), 0
    for op in rewriter:
        if op.kind == "Identity" and op.name not in graph.public:
            rewriter.remove(op)
            rewriter.forward(op.name, op.inputs[0])
            count += 1
    return (rewriter.finish(), (f"{count} Identity operators are gone",)) if count else (graph, ())


#: The chip's kernels. A row may compute the kernel's integers, as a chip rounds that is not exact; docs/plugins.md shows one, and
#: `python -m pydoc qconvert.plugin.Kernel` prints what else it says.
ROWS = Kernels(
    (
        Kernel(("Conv", "Gemm"), ("int8",), tolerance=constant_tolerance(1e-6)),
        Kernel(runs="float", tolerance=constant_tolerance(1e-6)),
    )
)


class Simulator:
    """The chip in numpy: put the vendor's simulator here."""

    note = ""

    def __init__(self, file: ModelFile) -> None:
        self.graph = load(file.path, **file.options)
        self.inputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.inputs}
        self.outputs = {name: (self.graph[name].dtype, self.graph[name].shape or ()) for name in self.graph.outputs}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return evaluate(self.graph, inputs)


@hookimpl
def qconvert_formats() -> Iterable[Format]:
    return [Format("$name", (".$name",), "operators and how often they occur", write=write)]


@hookimpl
def qconvert_passes() -> Iterable[Pass]:
    return [Pass("${module}_drop_identities", "an Identity inside the graph disappears", drop_identities)]


@hookimpl
def qconvert_targets() -> Iterable[Target]:
    summary = "a chip with convolutions of int8"
    passes = ("fuse_pad", "assign_layout", "store_activations")
    storage, checked_by = Storage("int8"), "$name:simulator"
    return [
        Target(
            "$name", "onnx", summary, passes=passes, layout="channels_first", storage=storage, kernels=ROWS, checked_by=checked_by
        )
    ]


@hookimpl
def qconvert_runtimes() -> Iterable[Runtime]:
    words = "a chip in numpy"
    return [Runtime("$name", ("onnx",), words, words, Simulator, lambda kernels: ROWS, ("simulator",))]
'''

_TESTS = '''\
"""What the plugin promises, on qconvert's sample graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from qconvert.plugin import (
    Graph,
    Op,
    Quantization,
    Tensor,
    list_plugins,
    save,
    temporary_plugin,
)
from qconvert.testing import assert_exact, assert_kernels_hold, assert_target_takes

import qconvert_$module as plugin


@pytest.fixture(autouse=True)
def there() -> Iterator[None]:
    """The plugin, whether it is installed or not."""
    if "$name" in {item.name for item in list_plugins()}:
        yield
    else:
        with temporary_plugin(plugin, "$name"):
            yield


def test_the_format_counts(sample_graph: Graph, tmp_path: Path) -> None:
    save(sample_graph, tmp_path / "counts.$name")
    assert sum(json.loads((tmp_path / "counts.$name").read_text()).values()) == len(sample_graph.ops)


def test_the_pass_is_exact() -> None:
    q = Quantization.per_tensor(0.5, 3)
    tensors = {name: Tensor(name, "int8", (1, 4), None, q) for name in "xabcy"}
    pairs = (("Identity", "x", "a"), ("Identity", "a", "b"), ("Neg", "b", "c"), ("Identity", "c", "y"))
    ops = tuple(Op(kind, (given,), (result,)) for kind, given, result in pairs)
    graph = Graph("chain", tensors, ops, ("x",), ("y",))
    assert_exact("${module}_drop_identities", [graph])


def test_the_target_takes_what_models_are_made_of() -> None:
    assert_target_takes("$name")


def test_the_runtime_gives_what_its_rows_say() -> None:
    """Random operators, each in a file of its own. Of five problems some have ties, which show how the chip rounds."""
    kinds = ("Conv", "Gemm", "Add", "AveragePool", "MaxPool", "Softmax")
    assert_kernels_hold("$name:simulator", "$name", kinds=kinds, types=("int8",), count=5)
'''

_README = """\
# qconvert-$name

A plugin of qconvert: a format, a pass, a target and a runtime to begin with. `pip install .` makes them known; `qconvert plugins` says so,
and without installing it `qconvert --plugin qconvert_$module/__init__.py plugins` tries it. `pip install '.[test]'` and `pytest` run the
tests. With the plugin, the runtime checks what is made for the target:

    qconvert convert model.tflite model.onnx --target $name
    qconvert check model.tflite model.onnx

The format counts operators. For a format of scales begin with qconvert's plugins/qconvert-scale-table instead.
"""


def _new(
    name: Annotated[str, typer.Argument(help="The plugin's name: small letters, digits, and - between.")],
    folder: Annotated[Path, typer.Option("--in", help="The folder in which the package is made.")] = Path(),
    debug: DebugFlag = False,
) -> None:
    """Write a package with a format, a pass, a target and a runtime to begin with, and tests that pass."""
    from qconvert.files.names import access_errors
    from qconvert.plugins import API_VERSION

    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise OptionError(
            f"{name!r} is no name of a plugin", remedy="Use small letters, digits, and - between, such as my-chip.", rule="malformed-name"
        )
    module = name.replace("-", "_")
    files = {
        "pyproject.toml": _PROJECT,
        "README.md": _README,
        f"qconvert_{module}/__init__.py": _CODE,
        f"qconvert_{module}/py.typed": "",
        "tests/test_plugin.py": _TESTS,
    }
    place = folder / f"qconvert-{name}"
    if os.path.lexists(place):
        raise OptionError("is there already", file=str(place), remedy="Use another name, or another folder (--in).", rule="file-exists")
    from string import Template

    with access_errors(place), _remove_on_error(place):
        _write(place, {path: Template(text).substitute(name=name, module=module, api=API_VERSION) for path, text in files.items()})
    shown = place if place.is_absolute() else f"./{place}"  # else pip looks for a package of that name
    typer.echo(f"{place} is a package with {len(files)} files. Try it: pip install {shown}, then qconvert plugins.")


@contextmanager
def _remove_on_error(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _write(place: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, encoding="utf-8")


def _plugins(json: JsonFlag = False) -> None:
    """List the loaded plugins with their origins, and the skipped ones with the reasons."""
    from qconvert.cli.reports import print_plugins
    from qconvert.plugins import list_plugins

    if json:
        print_document("plugins", [asdict(item) for item in list_plugins()])
    else:
        print_plugins()


def add_plugin_commands(app: typer.Typer) -> None:
    """Adds `plugins` and `plugin new`."""
    own = typer.Typer(help="Make a plugin.", no_args_is_help=True)
    app.command("plugins")(_plugins)
    own.command("new")(_new)
    app.add_typer(own, name="plugin")
    own.callback()(lambda: None)  # so that `new` stays a word of its own
