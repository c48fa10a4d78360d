"""qconvert carries quantized neural networks between frameworks without losing what training and calibration put into them."""

from __future__ import annotations

from qconvert.lazy import lazy_getattr
from qconvert.version import __version__

TYPE_CHECKING = False  # typing takes 20 ms, in which the command line does not yet wait for Ctrl-C
if TYPE_CHECKING:
    from qconvert.batches import BatchReport, batch
    from qconvert.benchmarking import BenchmarkReport, Measured, benchmark
    from qconvert.calibration.driver import calibrate
    from qconvert.calibration.report import Calibration
    from qconvert.calibration.settings import CalibrateOptions
    from qconvert.checking.accuracy import Accuracy, accuracy
    from qconvert.checking.auditing import AuditReport, TargetAudit, TargetAudits, audit, audit_all
    from qconvert.checking.check import check
    from qconvert.checking.file_in_runtime import run
    from qconvert.checking.findings import CheckReport
    from qconvert.checking.pass_costs import PassCost, pass_costs
    from qconvert.checking.proof.classes import Proof, Proved
    from qconvert.checking.proof.proving import prove
    from qconvert.checking.roundtrips import RoundtripReport, roundtrip
    from qconvert.conversion import ConversionReport, convert, load, save
    from qconvert.conversion.comparing import diff
    from qconvert.conversion.encodings import apply, extract_scales, load_encodings, save_encodings
    from qconvert.data import Preparation
    from qconvert.encodings import Encoding, Encodings, Place, QParams, Range
    from qconvert.errors import QConvertError
    from qconvert.graph import Graph, Op, Quantization, Signature, Tensor
    from qconvert.live import from_torch, to_torch
    from qconvert.partitioning.partition import partition
    from qconvert.partitioning.types import Partition, Region
    from qconvert.plugins import Change, Codegen, Cost, Format, Option, Pass, Runtime, Target, hookimpl, register
    from qconvert.plugins.options import ConvertOptions, ReadOptions
    from qconvert.reports import html_report

_HOMES = {
    "qconvert.batches": "BatchReport batch",
    "qconvert.benchmarking": "BenchmarkReport Measured benchmark",
    "qconvert.calibration.driver": "calibrate",
    "qconvert.calibration.report": "Calibration",
    "qconvert.calibration.settings": "CalibrateOptions",
    "qconvert.checking.accuracy": "Accuracy accuracy",
    "qconvert.checking.auditing": "AuditReport TargetAudit TargetAudits audit audit_all",
    "qconvert.checking.check": "check",
    "qconvert.checking.findings": "CheckReport",
    "qconvert.checking.pass_costs": "PassCost pass_costs",
    "qconvert.checking.proof.classes": "Proof Proved",
    "qconvert.checking.proof.proving": "prove",
    "qconvert.checking.roundtrips": "RoundtripReport roundtrip",
    "qconvert.checking.file_in_runtime": "run",
    "qconvert.conversion": "ConversionReport convert load save",
    "qconvert.conversion.comparing": "diff",
    "qconvert.conversion.encodings": "apply extract_scales load_encodings save_encodings",
    "qconvert.encodings": "Encoding Encodings QParams Place Range",
    "qconvert.data": "Preparation",
    "qconvert.errors": "QConvertError",
    "qconvert.graph": "Graph Op Quantization Signature Tensor",
    "qconvert.live": "from_torch to_torch",
    "qconvert.partitioning.partition": "partition",
    "qconvert.partitioning.types": "Partition Region",
    "qconvert.plugins": "Change Codegen Cost Format Option Pass Runtime Target hookimpl register",
    "qconvert.plugins.options": "ConvertOptions ReadOptions",
    "qconvert.reports": "html_report",
}
__all__ = [
    "Accuracy",
    "AuditReport",
    "BatchReport",
    "BenchmarkReport",
    "CalibrateOptions",
    "Calibration",
    "Change",
    "CheckReport",
    "Codegen",
    "ConversionReport",
    "ConvertOptions",
    "Cost",
    "Encoding",
    "Encodings",
    "Format",
    "Graph",
    "Measured",
    "Op",
    "Option",
    "Partition",
    "Pass",
    "PassCost",
    "Place",
    "Preparation",
    "Proof",
    "Proved",
    "QConvertError",
    "QParams",
    "Quantization",
    "Range",
    "ReadOptions",
    "Region",
    "RoundtripReport",
    "Runtime",
    "Signature",
    "Target",
    "TargetAudit",
    "TargetAudits",
    "Tensor",
    "__version__",
    "accuracy",
    "apply",
    "audit",
    "audit_all",
    "batch",
    "benchmark",
    "calibrate",
    "check",
    "convert",
    "diff",
    "extract_scales",
    "from_torch",
    "hookimpl",
    "html_report",
    "load",
    "load_encodings",
    "partition",
    "pass_costs",
    "prove",
    "register",
    "roundtrip",
    "run",
    "save",
    "save_encodings",
    "to_torch",
]


__getattr__ = lazy_getattr(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
