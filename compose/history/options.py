"""Closed sets of the command's options; nothing is imported for its help."""

from __future__ import annotations

from typing import Literal

__all__ = ["DryRun", "Only"]

DryRun = Literal["count", "full"]
"""Write nothing: count what there is to read, or fold it too."""
Only = Literal["streams", "train"]
"""A part of a replay: fold, and leave the training for later; or train on what was folded, and read no raw record."""
