"""A sub-command that does not exist: one sentence, with the nearest one if there is one."""

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
