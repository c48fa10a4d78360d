"""The command line: app (commands and options) and reports (how results are shown)."""
