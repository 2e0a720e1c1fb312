"""`python -m tracegrad.compose.cli`: the same as the console script, for children of the supervisor."""

from . import main

main()
