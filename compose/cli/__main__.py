"""`python -m tracegrad.compose.cli`: what the console script does. The supervisor starts `compose.run.serve`."""

from ..cli import main

main()
