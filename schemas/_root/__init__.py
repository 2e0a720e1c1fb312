"""The package `tracegrad` itself: its version, and the mark that its types are to be trusted (py.typed).

The rooms lie beside it under their own names. This is the one place that tells the version; the build reads it here.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
