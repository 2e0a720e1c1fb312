"""`python -m tracegrad.compose.cli`: the same as the console script. The supervisor starts `compose.serve` instead."""

from ..cli import main

main()
