"""Reports as pages: what a model is, and what a conversion, a check or a calibration found, in one HTML file that needs nothing else."""

from qconvert.reports.pages import html_report

__all__ = ["html_report"]
