"""The launcher: a job file is checked, planned, rendered, submitted, followed. Without torch."""

__version__ = "0.1.0"
