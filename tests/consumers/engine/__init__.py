"""Tests on and about the engine: a package, so that its fixtures end with it."""
