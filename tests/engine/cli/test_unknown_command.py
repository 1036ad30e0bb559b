"""A sub-command that does not exist, and an option without its value: one sentence, with the nearest name or the help."""

from __future__ import annotations

import pytest

from prefect_cachewatch.cli.main import main


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
        (["exec", "--stall-after"], "Option '--stall-after' requires an argument (see cachewatch exec --help)"),
        (["exec", "--cache-dir", "--poll", "1s"], "Option '--cache-dir' requires an argument, and '--poll' follows it (see cachewatch exec --help)"),
        (["generate", "-q", "--log", "--", "true"], "Option '--log' requires an argument, and '--' follows it (see cachewatch generate --help)"),
        (["exec", "--on-stall"], "Option '--on-stall' requires an argument (see cachewatch exec --help)"),
        (["probe", "/x", "--size"], "Option '--size' requires an argument (see cachewatch probe --help)"),
        (["automations", "apply", "--notify"], "Option '--notify' requires an argument (see cachewatch automations apply --help)"),
        (["store", "verify", "/s", "llama", "--against"], "Option '--against' requires an argument (see cachewatch store verify --help)"),
        (["fleet"], "Missing argument 'JOBS.yaml'. (see cachewatch fleet --help)"),
    ],
)  # fmt: skip
def test_an_option_without_its_value_is_named_with_the_help_to_read(capsys, argv, sentence):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert (ended.value.code, *capsys.readouterr()) == (125, "", f"cachewatch: {sentence}\n")
