"""Options that stand for fields: what follows from the field, and what becomes of what was given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import Field, field_validator

from prefect_cachewatch.cli.options.fields import Fields, build_model, split_pairs
from prefect_cachewatch.config import InputModel
from prefect_cachewatch.config.quantities import Duration, OptionalSize
from prefect_cachewatch.errors import InputError


class Model(InputModel):
    within_s: Duration = Field(default=5400, ge=1, le=86400, description="No more than this; see most_bytes.")
    most_bytes: OptionalSize = Field(default=None, ge=0, description="At most.")
    start_bytes: OptionalSize = Field(default=4096, description="At first.")
    pause_s: Duration = Field(default=0.5, description="A little.")
    tries: int = Field(default=3, ge=1, le=9, description="How often.")
    share: float | None = Field(default=None, description="Of all.")
    how: Literal["this", "that"] = Field(default="this", description="In which way.")
    mode: Literal["off", "wide"] = Field(default="off", description="wide: all of it.")
    kept: bool = Field(default=True, description="Whether it stays.")
    really: bool = Field(default=False, description="Whether.")
    where: Path | None = Field(default=None, description="The place.")
    labels: dict[str, str] = Field(default_factory=dict, description="Names.")
    globs: list[str] = Field(default=["*.log"], description="Files.")
    word: Annotated[str, Field(pattern="^[a-z]+$")] | None = Field(default=None, description="A word.")

    @field_validator("globs")
    @classmethod
    def _some(cls, globs: list[str]) -> list[str]:
        if not all(globs):
            raise ValueError("a glob is empty: write one")
        return globs


FIELDS = Fields(
    Model,
    "within_s, most_bytes, start_bytes, pause_s, tries, share, how, mode --wide =wide, kept --no-keep =false, really, where DIR, "
    "labels --label -l K=V, globs --glob GLOB, word",
)


def made(*argv: str) -> Model:
    got: list[Model] = []

    @click.command(params=[*FIELDS.options()])
    def command(**options: Any) -> None:
        got.append(FIELDS.build(options))

    CliRunner().invoke(command, argv, standalone_mode=False, catch_exceptions=False)
    return got[0]


def test_without_an_option_the_model_s_defaults_hold():
    assert made() == Model()


@pytest.mark.parametrize(
    ("argv", "fields"),
    [
        (["--within", "2h", "--most", "1MiB", "--tries", "4"], {"within_s": 7200, "most_bytes": 2**20, "tries": 4}),
        (["--most", "0", "--share", "0"], {"most_bytes": 0, "share": 0}),  # nothing is not not given
        (["--how", "that", "--wide", "--no-keep", "--really"], {"how": "that", "mode": "wide", "kept": False, "really": True}),
        (["--where", "/a", "--label", "a=b=c", "-l", "d="], {"where": "/a", "labels": {"a": "b=c", "d": ""}}),
        (["--glob", "a", "--glob", "b", "--word", "x"], {"globs": ["a", "b"], "word": "x"}),
    ],
)  # fmt: skip
def test_what_was_given_becomes_the_fields(argv, fields):
    assert made(*argv) == Model(**fields)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--within", "2d"], "--within 2 days is out of range: give at most 24 h"),
        (["--within", "0s"], "--within 0 s is out of range: give at least 1 s"),
        (["--label", "a"], "--label 'a' is not K=V"),
        (["--label", "a=1", "--label", "a=2"], "--label a is given twice with different values: give it once"),
        (["--glob", ""], "--glob: a glob is empty: write one"),
        (["--word", "A"], "--word: string should match pattern '^[a-z]+$'"),
        (["--share", "nan"], "--share: input should be a finite number (given: nan)"),
    ],
)
def test_what_does_not_fit_is_one_sentence_that_names_the_option(argv, sentence):
    with pytest.raises(InputError) as refused:
        made(*argv)
    assert refused.value.message == sentence


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--within", "soon"], "'soon' is not a duration: write it like 90s, 5m or 1h30m"),
        (["--tries", "10"], "10 is not in the range 1<=x<=9."),
        (["--how", "so"], "'so' is not one of 'this', 'that'."),
    ],
)
def test_what_is_no_value_at_all_is_said_when_it_is_read(argv, message):
    with pytest.raises(click.BadParameter) as refused:
        made(*argv)
    assert refused.value.message == message


def test_the_help_is_the_field_s_description_with_the_names_and_the_default_of_options():
    help_of = {each.opts[0]: each.help for each in FIELDS.options()}
    assert help_of["--within"] == "No more than this; see --most.  [default: 90m]"
    assert help_of["--start"] == "At first.  [default: 4KiB]"
    assert help_of["--pause"] == "A little.  [default: 0.5s]"
    assert help_of["--tries"] == "How often.  [default: 3]"
    assert help_of["--how"] == "In which way.  [default: this]"
    assert help_of["--wide"] == "all of it."
    assert help_of["--really"] == "Whether."
    assert help_of["--glob"] == "Files. Repeatable."


def test_a_model_without_options_names_the_option_that_its_field_would_have():
    with pytest.raises(InputError, match=r"--tries: input should be less than or equal to 9 \(given: 11\)"):
        build_model(Model, tries=11)
    assert split_pairs("--x", ["a=1", "a=1"]) == {"a": "1"}
