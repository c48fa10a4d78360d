"""Modules of PyTorch that are in memory: from_torch() reads one as a canonical graph, to_torch() makes one of a graph.

A module that is read is written into an archive in a temporary folder, by torch.export, or by torch.jit.trace where it computes on
quantized tensors, which torch.export refuses; the archive is then read as any file. So there is one reader, and what a live module means is
what its file means.

A module is read in eval mode, its fake quantization by the scales that stand in its buffers. What has to change for this is changed in a
copy. Observers must not run while a module is exported or traced: a running average changes with every call, also in eval mode, and the
scales would be others than those that were trained.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from qconvert.arguments import with_checked_arguments
from qconvert.conversion import load
from qconvert.conversion.normalizing import chosen_target, normalize
from qconvert.errors import OptionError, QConvertError, UnsupportedError, format_some
from qconvert.files.system import temporary_folder
from qconvert.formats.torch.program import torch_package
from qconvert.formats.torch.quantized_modules.writer import live as live_modules
from qconvert.formats.torch.writer import live
from qconvert.graph import Graph
from qconvert.plugins import format_named, passes
from qconvert.plugins.options import ReadOptions
from qconvert.targets.audit import refuse_violations

_NOT_CONVERTED = (
    "Convert it first, so that there are integers to read: torch.ao.quantization.convert(model.eval()) in eager mode, convert_fx(model) "
    "in FX mode, convert_pt2e(model) for PT2E."
)


def prepare_module(torch: Any, module: Any) -> Any:
    """The module itself where nothing has to change, else a copy that is ready for being written.

    Args:
        torch: the package.
        module: the user's.

    Raises:
        UnsupportedError: it has observers that have not been converted, or scales that are no quantization.
    """
    has_fakes = any(is_fake_quantizer(child) for child in module.modules())
    _require_converted(module)
    if not has_fakes and not any(child.training for child in module.modules()):
        return module
    ready = copy.deepcopy(module)
    _replace_modules(ready, lambda child: fixed_quantizer(torch, child) if is_fake_quantizer(child) else None)
    _to_eval(ready)
    return ready


def _replace_modules(module: Any, replacement: Callable[[Any], Any]) -> None:
    """Puts another module in the place of each for which there is one; a module that stands in several places has one replacement."""
    known: dict[int, Any] = {}
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            if id(child) not in known:
                known[id(child)] = replacement(child)
            if known[id(child)] is not None:
                setattr(parent, name, known[id(child)])


def _to_eval(module: Any) -> None:
    try:
        module.eval()
    except NotImplementedError:  # a graph of torch.export, whose operators say whether they train
        try:
            package = import_module("torchao.quantization.pt2e")
        except ImportError:
            package = import_module("torch.ao.quantization")
        package.move_exported_model_to_eval(module)


def _require_converted(module: Any) -> None:
    """Raises UnsupportedError for observers outside of fake quantizations: they change nothing, and their ranges would be lost."""
    within = {id(inner) for child in module.modules() if is_fake_quantizer(child) for inner in child.modules()}
    left = [
        name
        for name, child in module.named_modules()
        if callable(getattr(child, "calculate_qparams", None)) and hasattr(child, "quant_min") and id(child) not in within
    ]
    if left:
        some = format_some(left, 4)
        raise UnsupportedError(
            f"the module is prepared and not converted: it still has observers, {len(left)} in all ({some})",
            remedy=_NOT_CONVERTED,
            rule="not-converted",
        )


def is_fake_quantizer(module: Any) -> bool:
    """Whether a module is one of the FakeQuantize classes: they have a quantization and switches, and are told by these attributes.

    These are FakeQuantize, FusedMovingAvgObsFakeQuantize and FixedQParamsFakeQuantize of torch.ao.quantization and of torchao, and
    _LearnableFakeQuantize (LSQ).
    """
    has_quantization = all(hasattr(module, name) for name in ("scale", "zero_point", "fake_quant_enabled", "activation_post_process"))
    return has_quantization and callable(
        getattr(module, "calculate_qparams", None)
    )  # an exported graph keeps their buffers in plain modules


def fixed_quantizer(torch: Any, fake: Any) -> Any:
    """A module that does what a fake quantization with its observer switched off does, as one operator of aten.

    Their own forward functions ask tensors whether they are to observe, which torch.export cannot follow.

    Args:
        torch: the package.
        fake: the module; it is not changed.

    Raises:
        UnsupportedError: its scales were never set, or are no positive numbers.
    """
    if int(fake.fake_quant_enabled.reshape(-1)[0]) == 0:
        return torch.nn.Identity()
    observer = fake.activation_post_process
    low, high = (int(getattr(observer if hasattr(observer, name) else fake, name)) for name in ("quant_min", "quant_max"))
    scale, zero_point = _effective_qparams(torch, fake, low, high)
    if scale.numel() == 0 or not bool(torch.isfinite(scale).all()) or not bool((scale > 0).all()):
        raise UnsupportedError(
            f"the scales of a {type(fake).__name__} are {scale.tolist()}; PyTorch requires positive numbers", rule="scale-not-positive"
        )
    axis = int(getattr(fake, "ch_axis", getattr(observer, "ch_axis", -1)))
    per_channel = bool(getattr(fake, "is_per_channel", False)) or scale.numel() > 1
    return _fixed_class(torch)(scale, zero_point, axis if per_channel else None, low, high)


def _effective_qparams(torch: Any, fake: Any, low: int, high: int) -> tuple[Any, Any]:
    """Scale and zero point as the kernel uses them; LSQ trains both as real numbers, and its kernel rounds the zero point."""
    scale, zero_point = fake.scale.detach().clone().float(), fake.zero_point.detach().clone()
    if zero_point.is_floating_point():
        symmetric = str(getattr(fake, "qscheme", "")).endswith("symmetric")
        zero_point = torch.zeros_like(zero_point) if symmetric else zero_point.round().clamp(low, high)
        scale = scale.clamp(min=float(fake.eps.reshape(-1)[0])) if hasattr(fake, "eps") else scale
    return scale, zero_point.to(torch.int32)


def _fixed_class(torch: Any) -> Any:
    class FixedFakeQuantize(torch.nn.Module):  # type: ignore[misc]
        """fake_quantize_per_tensor_affine or fake_quantize_per_channel_affine with a quantization of its own."""

        def __init__(self, scale: Any, zero_point: Any, axis: int | None, low: int, high: int) -> None:
            super().__init__()
            self.register_buffer("scale", scale)
            self.register_buffer("zero_point", zero_point)
            self.axis, self.low, self.high = axis, low, high

        def forward(self, x: Any) -> Any:
            if self.axis is None:
                return torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero_point, self.low, self.high)
            return torch.fake_quantize_per_channel_affine(x, self.scale, self.zero_point, self.axis, self.low, self.high)

    return FixedFakeQuantize


def from_torch(module: Any, example_inputs: Any, *, dynamic_shapes: Any = None) -> Graph:
    """The canonical graph of a PyTorch module; integers, scales and zero points are the module's own.

    Takes eager and FX quantized modules (torch.ao.nn.quantized, torch.ao.nn.intrinsic.quantized), modules under quantization-aware training
    before conversion (their fake quantization by the scales in its buffers), PT2E GraphModules, modules with torchao's tensors, networks
    with OneFlow's observers (docs/pytorch.md), float modules, ScriptModules and ExportedPrograms. The module stays as it is.

    Args:
        module: the torch.nn.Module. It is read as in eval mode.
        example_inputs: a tensor or a tuple of tensors, as its forward takes them. Their shapes are those of the graph's inputs, and so are
            the scale and zero point of a quantized tensor.
        dynamic_shapes: sizes that are known only at run time, as torch.export.export takes them: for each input a mapping of axes to
            torch.export.Dim, or None.

    Returns:
        The graph in its normal form, as load() gives it.

    Raises:
        QConvertError: the module cannot be written, or holds what is not covered.
        MissingPackageError: torch is not installed.

    Example:
        >>> graph = qconvert.from_torch(model, (torch.zeros(1, 3, 224, 224),))
        >>> qconvert.save(graph, "model.onnx")
    """
    torch = torch_package()
    inputs = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    what = type(module).__name__
    with temporary_folder() as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        path = Path(folder) / f"{what if what.isidentifier() else 'module'}.pt2"
        try:
            path = _save_module(torch, module, inputs, dynamic_shapes, path)
            return load(path, "torch", **_shape_options(path, inputs, dynamic_shapes))
        except QConvertError as error:
            error.file = f"the module {what}"
            raise


def _save_module(torch: Any, module: Any, inputs: Sequence[Any], dynamic_shapes: Any, path: Path) -> Path:
    """Writes a module into an archive that the reader takes; returns its path, whose suffix says which."""
    if isinstance(module, torch.export.ExportedProgram):
        torch.export.save(module, path)
        return path
    if not isinstance(module, torch.nn.Module):
        raise OptionError(f"from_torch() takes a torch.nn.Module, not {type(module).__name__}", rule="not-a-module")
    if not all(isinstance(value, torch.Tensor) and _has_one_scale(torch, value) for value in inputs):
        raise OptionError(
            "example inputs are tensors, or quantized tensors with one scale",
            remedy="Give a tensor, or a tuple of the tensors that forward() takes.",
            rule="inputs-not-tensors",
        )
    if isinstance(module, torch.jit.ScriptModule):
        torch.jit.save(module, path.with_suffix(".pt"))
        return path.with_suffix(".pt")
    ready = prepare_module(torch, module)

    def export() -> Path:
        torch.export.save(torch.export.export(ready, tuple(inputs), dynamic_shapes=dynamic_shapes), path)
        return path

    def trace() -> Path:
        torch.jit.save(torch.jit.trace(ready, tuple(inputs), check_trace=False), path.with_suffix(".pt"))
        return path.with_suffix(".pt")

    quantized = any(value.is_quantized for value in inputs) or _computes_on_quantized_tensors(torch, ready)
    return _try_ways([trace, export] if quantized else [export, trace])


def _has_one_scale(torch: Any, value: Any) -> bool:
    return not value.is_quantized or value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)


def _try_ways(ways: Sequence[Callable[[], Path]]) -> Path:
    """What the first way gives that torch takes; the error of the first tells why none does."""
    failures: list[Exception] = []
    for way in ways:
        try:
            return way()
        except QConvertError:
            raise
        except Exception as error:  # torch raises what it likes
            failures.append(error)
    first = str(failures[0]).strip().splitlines() or [""]
    raise UnsupportedError(
        f"torch can neither export nor trace the module: {type(failures[0]).__name__}: {first[0][:300]}",
        remedy="Call module(*example_inputs) and torch.export.export(module, example_inputs), whose errors say more.",
        rule="export-failed",
    ) from failures[0]


def _computes_on_quantized_tensors(torch: Any, module: Any) -> bool:
    """Whether a module has packed parameters, or makes quantized tensors, which torch.export does not take."""
    for child in module.modules():
        home = type(child).__module__
        if home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")) and ".reference" not in home:
            if type(child).__name__ not in ("FloatFunctional", "FXFloatFunctional"):
                return True
        if any(isinstance(value, torch.ScriptObject) for value in vars(child).values()):
            return True
        if isinstance(child, torch.fx.GraphModule) and any(_makes_quantized(torch, node) for node in child.graph.nodes):
            return True
    return any(value.is_quantized for value in (*module.parameters(), *module.buffers()))


def _makes_quantized(torch: Any, node: Any) -> bool:
    return node.op == "call_function" and node.target in (torch.quantize_per_tensor, torch.quantize_per_channel)


def _shape_options(path: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> ReadOptions:
    """A trace does not say the shapes of its inputs: the option of the reader that does."""
    if path.suffix == ".pt2":
        return {}
    stated = list(dynamic_shapes.values()) if isinstance(dynamic_shapes, Mapping) else list(dynamic_shapes or ())
    texts = []
    for index, value in enumerate(inputs):
        named = (stated[index] if index < len(stated) else None) or {}
        named = dict(enumerate(named)) if isinstance(named, (tuple, list)) else named
        sizes = [getattr(named.get(axis), "__name__", str(size)) for axis, size in enumerate(value.shape)]
        quantization = f"({value.q_scale()!r},{value.q_zero_point()})" if value.is_quantized else ""
        texts.append(f"{','.join(sizes)}:{str(value.dtype).removeprefix('torch.')}{quantization}")
    return {"input_shape": "; ".join(texts)}


@with_checked_arguments
def to_torch(graph: Graph, *, target: str = "", form: str = "program") -> Any:
    """A torch.nn.Module that computes what a graph means: what save() would write as .pt2 or .pt, not yet exported.

    It takes the graph's inputs in order and returns a tuple of its outputs, integers where the graph stores integers. It is a
    torch.fx.GraphModule: `module.graph` shows its calls, `module.print_readable()` its code. In the form "program" buffers have the
    source's names of weights; in the form "modules" layers are modules of torch.ao.nn.quantized, which take and give quantized tensors.

    Args:
        graph: as from load().
        target: the name of a target of PyTorch, which says how activations and weights are stored; "" for the form's own.
        form: "program", of operators on plain integers, or "modules".

    Raises:
        MissingPackageError: PyTorch is not installed.
        OptionError: there is no such form or target, or the target is of another form or format.
        UnsupportedError: operators that have no form in PyTorch; kinds are all listed.

    Examples:
        >>> module = qconvert.to_torch(qconvert.load("model.tflite"))
        >>> scores, = module(torch.zeros(1, 96, 96, 1, dtype=torch.int8))
    """
    if form not in ("program", "modules"):
        raise OptionError(f"there is no form {form!r}", remedy="Use program or modules.", rule="unknown-form")
    chosen = chosen_target(format_named("torch"), target, form)
    assert chosen is not None
    options = {option.name: option.default for name in chosen.passes for option in passes()[name].options}
    graph, _ = normalize(graph, chosen, **options)
    refuse_violations(graph, chosen)
    return live_modules(graph) if form == "modules" else live(graph, str(chosen.write_options.get("numerics", "exact")))
