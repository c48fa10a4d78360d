"""Reports as pages: a model, or the findings of a conversion, a check or a calibration, in one self-contained HTML file."""

from qconvert.reports.pages import html_report

__all__ = ["html_report"]
