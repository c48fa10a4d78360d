"""What the author of a plugin needs: `from qconvert.plugin import …`, and nothing of qconvert besides. docs/plugins.md explains it.

What stands here keeps its meaning as long as the first number of API_VERSION stays (plugins/hooks.py). Names are imported when they are
first used, so a plugin that names them costs no time at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qconvert.lazy import lazy_getattr

if TYPE_CHECKING:
    from qconvert.arithmetic import choose_quantization, dequantize, quantize
    from qconvert.arithmetic.storage import fits_dtype, pack_bits, unpack_bits
    from qconvert.checkpoints.config import Config
    from qconvert.checkpoints.container import Container, Needs
    from qconvert.checkpoints.fitting import Misfit, fit_weight
    from qconvert.checkpoints.parts import Parts
    from qconvert.checkpoints.repacking import ConvertedLayer, Repacked, convert_layer, map_in_order, refusal
    from qconvert.checkpoints.safetensors import Checkpoint
    from qconvert.checkpoints.source import CheckpointSource
    from qconvert.checkpoints.weight import E2M1, BlockWeight
    from qconvert.checkpoints.weight import pack as pack_words
    from qconvert.checkpoints.weight import unpack as unpack_words
    from qconvert.conversion import convert, load, normalize, run_passes, save
    from qconvert.encodings import Encoding, Encodings, Place, QParams, Range, quantization_of
    from qconvert.errors import (
        FileAccessError,
        InvalidGraphError,
        InvalidModelError,
        LossError,
        MissingPackageError,
        OptionError,
        QConvertError,
        RuntimeRefusedError,
        UnsupportedError,
        WrongFormatError,
        format_count,
        format_counts,
        join_errors,
        name_file_in_errors,
        quote_some,
    )
    from qconvert.evaluate import evaluate, evaluate_op
    from qconvert.files import documents, map_file
    from qconvert.formats.onnx.builder import Builder as OnnxBuilder
    from qconvert.formats.onnx.reading import Reading as OnnxReading
    from qconvert.formats.reading.notes import NotedTensor
    from qconvert.formats.tflite.file_contents import ListedOperator as TfliteListed
    from qconvert.formats.tflite.file_contents import listed_operators as tflite_operators
    from qconvert.formats.tflite.operator import Operator as TfliteOperator
    from qconvert.formats.tflite.reading import Reading as TfliteReading
    from qconvert.formats.tflite.write_operators import write_operators as write_tflite_operators
    from qconvert.formats.tflite.writing import Writing as TfliteWriting
    from qconvert.formats.torch.writing import Builder as TorchBuilder
    from qconvert.graph import Array, Attribute, Graph, Names, Op, Quantization, Shape, Signature, Tensor, integer_range, numpy_dtype
    from qconvert.graph.activations import activation_bounds
    from qconvert.graph.carried_states import Carried, StatefulModel, parse_states
    from qconvert.graph.metadata import SOURCE_KERNELS, STATES
    from qconvert.graph.names import quote_nearest
    from qconvert.kernels import KERNELS, Integers, Kernel, Kernels, constant_tolerance, float32_tolerance
    from qconvert.kernels.products import Requantizer
    from qconvert.kernels.tolerances import partial_sums
    from qconvert.operators import (
        KINDS,
        REQUIRED,
        AttributeSpec,
        Call,
        ExactResult,
        Kind,
        choice,
        flag,
        function,
        has,
        integer,
        integers,
        number,
        numbers,
        text,
        texts,
    )
    from qconvert.operators.formulas import Formula, lowers
    from qconvert.operators.properties import (
        ALONG_AXIS,
        DECIDES,
        ELEMENTWISE,
        FIRST,
        MIXES,
        PINNED,
        REDUCES,
        UNLESS_ALONG,
        WHEREVER,
        Samples,
        any_value,
        before_last,
        fixed_bounds,
        in_rows,
        within_data,
        within_data_or_zero,
    )
    from qconvert.operators.shapes_and_functions import infer, needed_ops, output_shapes
    from qconvert.operators.sizes import stated_pads
    from qconvert.operators.values import Value, apply, constant_of, dtype_of, shape_of
    from qconvert.plugins import (
        API_VERSION,
        Accelerator,
        Change,
        Codegen,
        Cost,
        Decoding,
        Derived,
        Engine,
        Folding,
        Format,
        Inside,
        Layer,
        LoadedModel,
        LoadedPlugin,
        ModelFile,
        Option,
        Parameters,
        Pass,
        Pieces,
        Runtime,
        Storage,
        Target,
        Verdict,
        Violation,
        defer_imports,
        hookimpl,
        list_plugins,
        register,
        replaces,
        target_named,
        temporary_plugin,
    )
    from qconvert.plugins.options import NUMERICS, parse_input_shapes
    from qconvert.rewriting import Match, Pattern, Rewriter, find_matches, with_quantization
    from qconvert.rewriting.lowering import Scope, conditions, legality, lower, require_legal, since
    from qconvert.rules.validation import validate
    from qconvert.runtimes.onnx_inside import OnnxInside
    from qconvert.runtimes.packages import Child, require_package, runtime_package
    from qconvert.targets.audit import refuse_violations

_HOMES = {
    "qconvert.plugins": (
        "API_VERSION Accelerator Change Codegen Cost Decoding Derived Engine Folding Format Inside Layer LoadedModel LoadedPlugin "
        "ModelFile Option Parameters Pass Pieces Runtime Storage Target Verdict Violation defer_imports hookimpl list_plugins register "
        "replaces target_named temporary_plugin"
    ),
    "qconvert.plugins.options": "NUMERICS parse_input_shapes",
    "qconvert.checkpoints.repacking": "ConvertedLayer Repacked convert_layer map_in_order refusal",
    "qconvert.checkpoints.config": "Config",
    "qconvert.checkpoints.container": "Container Needs",
    "qconvert.checkpoints.parts": "Parts",
    "qconvert.checkpoints.safetensors": "Checkpoint",
    "qconvert.checkpoints.fitting": "Misfit fit_weight",
    "qconvert.checkpoints.weight": "pack_words=pack unpack_words=unpack BlockWeight E2M1",
    "qconvert.checkpoints.source": "CheckpointSource",
    "qconvert.runtimes.packages": "Child require_package runtime_package",
    "qconvert.targets.audit": "refuse_violations",
    "qconvert.runtimes.onnx_inside": "OnnxInside",
    "qconvert.graph": "Array Attribute Graph Names Op Quantization Shape Signature Tensor integer_range numpy_dtype",
    "qconvert.graph.activations": "activation_bounds",
    "qconvert.graph.carried_states": "Carried StatefulModel parse_states",
    "qconvert.graph.metadata": "SOURCE_KERNELS STATES",
    "qconvert.files": "documents map_file",
    "qconvert.kernels": "KERNELS Integers Kernel Kernels constant_tolerance float32_tolerance",
    "qconvert.kernels.products": "Requantizer",
    "qconvert.kernels.tolerances": "partial_sums",
    "qconvert.rewriting": "Match Pattern Rewriter find_matches with_quantization",
    "qconvert.graph.names": "quote_nearest",
    "qconvert.operators.shapes_and_functions": "infer needed_ops output_shapes",
    "qconvert.operators.properties": (
        "any_value fixed_bounds within_data within_data_or_zero ALONG_AXIS DECIDES ELEMENTWISE PINNED REDUCES FIRST MIXES "
        "UNLESS_ALONG WHEREVER Samples before_last in_rows"
    ),
    "qconvert.operators.formulas": "Formula lowers",
    "qconvert.operators.sizes": "stated_pads",
    "qconvert.operators.values": "Value apply constant_of dtype_of shape_of",
    "qconvert.rewriting.lowering": "Scope conditions legality lower require_legal since",
    "qconvert.rules.validation": "validate",
    "qconvert.operators": (
        "KINDS REQUIRED AttributeSpec Call ExactResult Kind choice flag function has integer integers number numbers text texts"
    ),
    "qconvert.arithmetic.storage": "fits_dtype pack_bits unpack_bits",
    "qconvert.arithmetic": "choose_quantization dequantize quantize",
    "qconvert.evaluate": "evaluate evaluate_op",
    "qconvert.encodings": "Encoding Encodings QParams Place Range quantization_of",
    "qconvert.conversion": "convert load normalize run_passes save",
    "qconvert.errors": (
        "FileAccessError InvalidGraphError InvalidModelError LossError MissingPackageError OptionError QConvertError "
        "RuntimeRefusedError UnsupportedError WrongFormatError format_count format_counts join_errors name_file_in_errors quote_some"
    ),
    "qconvert.formats.reading.notes": "NotedTensor",
    "qconvert.formats.tflite.reading": "TfliteReading=Reading",
    "qconvert.formats.tflite.writing": "TfliteWriting=Writing",
    "qconvert.formats.tflite.file_contents": "TfliteListed=ListedOperator tflite_operators=listed_operators",
    "qconvert.formats.tflite.operator": "TfliteOperator=Operator",
    "qconvert.formats.tflite.write_operators": "write_tflite_operators=write_operators",
    "qconvert.formats.onnx.reading": "OnnxReading=Reading",
    "qconvert.formats.onnx.builder": "OnnxBuilder=Builder",
    "qconvert.formats.torch.writing": "TorchBuilder=Builder",
}

__all__ = [
    "ALONG_AXIS",
    "API_VERSION",
    "DECIDES",
    "E2M1",
    "ELEMENTWISE",
    "FIRST",
    "KERNELS",
    "KINDS",
    "MIXES",
    "NUMERICS",
    "PINNED",
    "REDUCES",
    "REQUIRED",
    "SOURCE_KERNELS",
    "STATES",
    "UNLESS_ALONG",
    "WHEREVER",
    "Accelerator",
    "Array",
    "Attribute",
    "AttributeSpec",
    "BlockWeight",
    "Call",
    "Carried",
    "Change",
    "Checkpoint",
    "CheckpointSource",
    "Child",
    "Codegen",
    "Config",
    "Container",
    "ConvertedLayer",
    "Cost",
    "Decoding",
    "Derived",
    "Encoding",
    "Encodings",
    "Engine",
    "ExactResult",
    "FileAccessError",
    "Folding",
    "Format",
    "Formula",
    "Graph",
    "Inside",
    "Integers",
    "InvalidGraphError",
    "InvalidModelError",
    "Kernel",
    "Kernels",
    "Kind",
    "Layer",
    "LoadedModel",
    "LoadedPlugin",
    "LossError",
    "Match",
    "Misfit",
    "MissingPackageError",
    "ModelFile",
    "Names",
    "Needs",
    "NotedTensor",
    "OnnxBuilder",
    "OnnxInside",
    "OnnxReading",
    "Op",
    "Option",
    "OptionError",
    "Parameters",
    "Parts",
    "Pass",
    "Pattern",
    "Pieces",
    "Place",
    "QConvertError",
    "QParams",
    "Quantization",
    "Range",
    "Repacked",
    "Requantizer",
    "Rewriter",
    "Runtime",
    "RuntimeRefusedError",
    "Samples",
    "Scope",
    "Shape",
    "Signature",
    "StatefulModel",
    "Storage",
    "Target",
    "Tensor",
    "TfliteListed",
    "TfliteOperator",
    "TfliteReading",
    "TfliteWriting",
    "TorchBuilder",
    "UnsupportedError",
    "Value",
    "Verdict",
    "Violation",
    "WrongFormatError",
    "activation_bounds",
    "any_value",
    "apply",
    "before_last",
    "choice",
    "choose_quantization",
    "conditions",
    "constant_of",
    "constant_tolerance",
    "convert",
    "convert_layer",
    "defer_imports",
    "dequantize",
    "documents",
    "dtype_of",
    "evaluate",
    "evaluate_op",
    "find_matches",
    "fit_weight",
    "fits_dtype",
    "fixed_bounds",
    "flag",
    "float32_tolerance",
    "format_count",
    "format_counts",
    "function",
    "has",
    "hookimpl",
    "in_rows",
    "infer",
    "integer",
    "integer_range",
    "integers",
    "join_errors",
    "legality",
    "list_plugins",
    "load",
    "lower",
    "lowers",
    "map_file",
    "map_in_order",
    "name_file_in_errors",
    "needed_ops",
    "normalize",
    "number",
    "numbers",
    "numpy_dtype",
    "output_shapes",
    "pack_bits",
    "pack_words",
    "parse_input_shapes",
    "parse_states",
    "partial_sums",
    "quantization_of",
    "quantize",
    "quote_nearest",
    "quote_some",
    "refusal",
    "refuse_violations",
    "register",
    "replaces",
    "require_legal",
    "require_package",
    "run_passes",
    "runtime_package",
    "save",
    "shape_of",
    "since",
    "stated_pads",
    "target_named",
    "temporary_plugin",
    "text",
    "texts",
    "tflite_operators",
    "unpack_bits",
    "unpack_words",
    "validate",
    "with_quantization",
    "within_data",
    "within_data_or_zero",
    "write_tflite_operators",
]

__getattr__ = lazy_getattr(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
