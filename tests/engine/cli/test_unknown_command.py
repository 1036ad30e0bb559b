"""A sub-command that does not exist, and an option without its value: one sentence, with the nearest one or an example."""

from __future__ import annotations

import shlex

import click
import pytest

from prefect_cachewatch.cli.group import command_group
from prefect_cachewatch.cli.main import COMMANDS, main
from prefect_cachewatch.cli.option_examples import example_of


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["exce", "--", "true"], "No such command 'exce': did you mean exec? (see cachewatch --help)"),
        (["Generate"], "No such command 'Generate': did you mean generate? (see cachewatch --help)"),
        (["reprot", "--list"], "No such command 'reprot': did you mean report? (see cachewatch --help)"),
        (["dance"], "No such command 'dance'. (see cachewatch --help)"),
        (["exe\x1b[2Jc"], "No such command 'exe\\\\x1b[2Jc': did you mean exec? (see cachewatch --help)"),
    ],
)
def test_it_is_answered_with_the_nearest_name(capsys, argv, sentence):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert (ended.value.code, *capsys.readouterr()) == (125, "", f"cachewatch: {sentence}\n")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["exec", "--stall-after"], "Option '--stall-after' requires an argument, as in --stall-after 10m (see cachewatch exec --help)"),
        (["exec", "--cache-dir", "--poll", "1s"], "Option '--cache-dir' requires an argument, and '--poll' follows it, as in --cache-dir /mnt/cache (see cachewatch exec --help)"),
        (["generate", "-q", "--log", "--", "true"], "Option '--log' requires an argument, and '--' follows it, as in --log run.log (see cachewatch generate --help)"),
        (["exec", "--on-stall"], "Option '--on-stall' requires an argument, as in --on-stall stop (see cachewatch exec --help)"),
        (["probe", "/x", "--repetitions"], "Option '--repetitions' requires an argument, as in --repetitions 3 (see cachewatch probe --help)"),
        (["automations", "apply", "--notify"], "Option '--notify' requires an argument, as in --notify slack-webhook/ops (see cachewatch automations apply --help)"),
        (["store", "verify", "/s", "llama", "--against"], "Option '--against' requires an argument, as in --against 20261120T151010123Z-7cff96ab (see cachewatch store verify --help)"),
        (["fleet"], "Missing argument 'JOBS.yaml'. (see cachewatch fleet --help)"),
    ],
)  # fmt: skip
def test_an_option_without_its_value_is_named_with_an_example(capsys, argv, sentence):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert (ended.value.code, *capsys.readouterr()) == (125, "", f"cachewatch: {sentence}\n")


def options(command: click.Command, context: click.Context) -> list[tuple[click.Context, click.Option]]:
    if not isinstance(command, click.Group):
        found = [each for each in command.params if isinstance(each, click.Option) and not each.is_flag]
        return [(context, each) for each in found if not each.count]
    below = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [each for name, one in below if one for each in options(one, click.Context(one, context, name))]


def test_every_example_is_a_value_that_its_option_takes():
    group = command_group(COMMANDS)
    found = options(group, click.Context(group))
    assert len(found) > 150
    for context, option in found:
        (word,) = shlex.split(example_of(option))
        option.type.convert(word, option, context)
        assert word != (option.metavar or option.type.name.upper()), option.opts
