"""docs/settings.md and the flags' help say what stands under the fields of the sections' records."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest

from tests.reference.settings import settings_markdown
from tracegrad.compose.cli.common import help_of
from tracegrad.compose.run.settings import RunSettings
from tracegrad.schemas.reasons import Reason, row_of
from tracegrad.schemas.section import Section, section_of

ROOT = Path(__file__).parents[3]


def test_the_page_is_generated_from_the_records() -> None:
    """docs/settings.md: run `python -m tests.reference.settings > docs/settings.md`."""
    assert (ROOT / "docs" / "settings.md").read_text() == settings_markdown()


def test_a_heading_is_what_stands_in_the_file() -> None:
    """A table of named records is no list: its heading, copied, would be refused."""
    headings = re.findall(r"^## \[(.+)\]$", settings_markdown(), re.MULTILINE)
    assert {'feedback.names."name"', 'streams.services."name"', "[air.rules]", "feedback"} <= {*headings}


def sections(record: type[Section]) -> list[type[Section]]:
    """The record and those in it."""
    inner = [found for kind in typing.get_type_hints(record).values() if (found := section_of(kind))]
    return [record, *(one for found in inner for one in sections(found))]


@pytest.mark.parametrize("record", sections(RunSettings)[1:], ids=lambda record: record.__name__)
def test_every_key_says_what_it_means(record: type[Section]) -> None:
    """In a docstring under it; inherited keys too."""
    assert [key for key in record.__struct_fields__ if not record.docs().get(key)] == []


def test_a_section_names_itself_as_the_file_does() -> None:
    """So that who reads the record finds the key."""
    named = {name: section_of(kind) for name, kind in typing.get_type_hints(RunSettings).items()}
    for name, record in named.items():
        if record is not None:
            assert re.match(rf"`\[{name}\]`: |`\[\[{name}\]\]`: ", record.__doc__ or ""), name


@pytest.mark.parametrize("reason", Reason)
def test_a_remedy_names_keys_that_a_file_may_have(reason: Reason) -> None:
    """`[section] key`, so that who follows it is not refused."""
    named = re.findall(r"\[(\w+)\] (\w+)", row_of(reason).remedy)
    kinds = {name: section_of(kind) for name, kind in typing.get_type_hints(RunSettings).items()}
    assert [(name, key) for name, key in named if key not in getattr(kinds[name], "__struct_fields__", ())] == []


def test_help_is_the_docstring() -> None:
    """With brackets that are no markup."""
    assert help_of("trainer.steps") == "Batches until the run is done."
    assert help_of("run").startswith(r"Name of the run, \[a-z0-9-]{1,40};")
