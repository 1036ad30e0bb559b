"""The help: one screen of what is common, and all of it when asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from prefect_cachewatch.cli.group import command_group
from prefect_cachewatch.cli.main import COMMANDS

GROUP = command_group(COMMANDS)
SECTIONED = ["exec", "generate", "watch", "fleet"]
RARE = ("--progress-by",)


def shown(name: str, option: str) -> list[str]:
    result = CliRunner().invoke(GROUP, [name, option], prog_name="cachewatch", terminal_width=80)
    assert result.exit_code == 0
    return result.output.splitlines()


def command(name: str) -> click.Command:
    found = GROUP.get_command(click.Context(GROUP), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", SECTIONED)
def test_the_help_is_one_screen_of_what_is_common(name):
    lines = shown(name, "--help")
    assert 24 <= len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert not [option for option in RARE if option in "\n".join(lines)]
    assert f"cachewatch {name} --help-all shows every option." in lines
    examples = lines[lines.index("Examples:") + 1 :][:2]
    assert all(line.startswith(f"  cachewatch {name} ") for line in examples)


@pytest.mark.parametrize("name", SECTIONED)
def test_the_whole_help_has_every_option_and_its_words(name):
    lines = shown(name, "--help-all")
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    options = [each for each in command(name).params if isinstance(each, click.Option)]
    for option in options:
        assert re.search(rf"(?<![\w-]){option.opts[0]}(?![\w-])", text), option.opts
        assert option.help
        # A word may be broken at a hyphen.
        assert re.sub(r"\s", "", option.help) in re.sub(r"\s", "", text), option.help


def every_command(found: click.Command = GROUP, path: str = "cachewatch") -> Iterator[tuple[str, click.Command]]:
    yield path, found
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            below = found.get_command(context, name)
            assert below is not None
            yield from every_command(below, f"{path} {name}")


def test_each_option_has_a_parameter_of_its_own_and_a_parameter_has_one_option_in_all_commands():
    options: dict[str, set[str]] = {}
    for path, found in every_command():
        names = [str(each.name) for each in found.params]
        assert len(names) == len(set(names)), f"{path}: two options set one parameter"
        for each in found.params:
            if isinstance(each, click.Option):
                options.setdefault(str(each.name), set()).add(max(each.opts, key=len))
    assert {name: opts for name, opts in options.items() if len(opts) > 1} == {}


@pytest.mark.parametrize("name", SECTIONED)
def test_what_the_help_shows_as_common_is_an_option(name):
    found = command(name)
    for section in found.sections:
        names = {option for each in section.options for option in each.opts}
        unknown = set(section.common.split()) - names
        assert unknown <= {"--name"}, section.title  # exec has none: its job is named by the directory


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("exec", ["[--cache-dir DIR] [OPTIONS] -- COMMAND", "[required, unless a profile knows the"]),
        ("generate", ["--cache-dir DIR [OPTIONS] -- COMMAND", "[required with --store]"]),
        ("watch", ["--pid PID --cache-dir DIR [OPTIONS]", "on this machine [required]", "grow [required]"]),
        ("fleet", ["[OPTIONS] JOBS.yaml"]),
    ],
)
def test_what_is_required_is_marked(name, marks):
    text = " ".join(" ".join(shown(name, "--help")).split())
    assert not [mark for mark in marks if mark not in text]
