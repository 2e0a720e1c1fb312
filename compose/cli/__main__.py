"""`python -m tracegrad.compose.cli`: the same as the console script. The supervisor starts `compose.serve` instead."""

from . import main

main()
