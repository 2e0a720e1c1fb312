"""The faults of tests/mutants fit today's code: a file that moved takes them along."""

from __future__ import annotations

import pytest

from tests.house import ROOT
from tests.mutants.run import Mutant, mutants
from tests.tiers import is_left_out


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_fault_fits_the_code_and_names_its_test(mutant: Mutant) -> None:
    """`old` stands in the file once, the changed file is Python, and the test is there."""
    compile(mutant.applied(), mutant.file, "exec")
    file, _, function = mutant.test.partition("::")
    assert f"def {function}(" in (ROOT / file).read_text(), "port the fault with the code: tests/mutants/README.md"
    assert not mutant.file.startswith("tests/") and not is_left_out(mutant.test)


def test_there_are_as_many_as_the_gate_counts() -> None:
    """30 that were mended once and 12 of the pure core, each of its own name."""
    kinds = [mutant.kind for mutant in mutants()]
    assert (kinds.count("mended"), kinds.count("seeded")) == (30, 12)
    assert len({mutant.name for mutant in mutants()}) == 42
