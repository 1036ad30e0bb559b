"""Options from the environment and from a file: which one counts, and one sentence for what is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from prefect_cachewatch.cli.exec_command import command as exec_command
from prefect_cachewatch.cli.group import command_group
from prefect_cachewatch.cli.main import COMMANDS
from prefect_cachewatch.cli.options.settings import variable_of
from prefect_cachewatch.errors import InputError

SECTIONED = ["exec", "generate", "watch", "fleet"]
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("CACHEWATCH_")]:
        monkeypatch.delenv(name)
    return tmp_path


def settings(*options: str, **environ: str) -> Any:
    """What `exec` would run with; raises what it raises."""
    got: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "prefect_cachewatch.cli.exec_command.run_exec",
            lambda run, options, note, last: got.append(SimpleNamespace(**run, quiet=options["quiet"])) or 0,
        )
        result = CliRunner().invoke(command_group(COMMANDS), ["exec", *options, "--", "true"], env=environ)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert got, result.output
    return got[0]


def refused(*options: str, **environ: str) -> str:
    try:
        settings(*options, **environ)
    except (InputError, AssertionError) as error:
        text = error.message if isinstance(error, InputError) else str(error)
        assert "Traceback" not in text
        return text
    raise AssertionError("it was not refused")


def test_the_command_line_comes_before_the_environment_and_that_before_the_file_and_the_default(here):
    (here / "cachewatch.toml").write_text('cache-dir = "/c"\nstall-after = "7m"\n')
    assert settings("--cache-dir", "/c").stall.stall_after_s == 300
    assert settings("--config", "cachewatch.toml").stall.stall_after_s == 420
    assert settings("--config", "cachewatch.toml", CACHEWATCH_STALL_AFTER="8m").stall.stall_after_s == 480
    found = settings("--config", "cachewatch.toml", "--stall-after", "9m", CACHEWATCH_STALL_AFTER="8m")
    assert found.stall.stall_after_s == 540


def test_a_file_says_it_in_every_form_that_the_command_line_has(here):
    (here / "c.toml").write_text(
        'cache_dir = ["/c", "/d"]\nstall-after = 600\nexpect = "1MiB"\n'
        'quiet = true\nverbose = false\nreport = "r.json"\nignore = "*.x"\n'
        '[env]\nA = "1=2"\nB = 3\n'
        '[exec]\nwait-for = "leader"\ngrace = "2s"\n[watch]\npid = 4711\n'
    )
    found = settings("--config", "c.toml")
    assert [str(path) for path in found.job.cache_dirs] == ["/c", "/d"]
    assert (found.stall.stall_after_s, found.job.expected_bytes, found.stop.grace_s) == (600, 2**20, 2)
    assert (found.quiet, found.outputs.report, found.job.wait_for) == (True, Path("r.json").absolute(), "leader")
    assert found.job.env == {"A": "1=2", "B": "3"}
    assert found.job.ignore[0] == "*.x"
    assert settings(CACHEWATCH_CONFIG="c.toml").stall.stall_after_s == 600


def test_the_environment_has_values_between_blanks_and_words_for_flags():
    found = settings(CACHEWATCH_CACHE_DIR="/a /c", CACHEWATCH_QUIET="yes", CACHEWATCH_NO_BUNDLE="0", CACHEWATCH_POLL="")
    assert [str(path) for path in found.job.cache_dirs] == ["/a", "/c"]
    assert (found.quiet, found.outputs.bundle, found.stall.poll_s) == (True, True, 15)


def test_a_profile_stands_below_what_was_set_anywhere(here):
    (here / "c.toml").write_text('profile = "openvino,cache_dir=/mnt/ov"\n')
    assert settings("--config", "c.toml").stall.stall_after_s == 600
    assert settings("--config", "c.toml", CACHEWATCH_STALL_AFTER="5m").stall.stall_after_s == 300
    found = settings(
        "--profile", "vllm-compile-cache,cache_root=/c", "--progress-log", "step", "--env", "VLLM_CACHE_ROOT=/d"
    )
    assert (found.job.progress_log, found.job.env["VLLM_CACHE_ROOT"]) == (["step"], "/d")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('stal-after = "5m"', "--config FILE: stal-after is no option of cachewatch exec: did you mean stall-after?"),
        ('[exec]\nbackoff = 3', "FILE: backoff is no option of cachewatch exec; an option of another command stands in"),
        ('stall-after = "1ms"', "--stall-after 0 s is out of range: give at least 0.2 s"),
        ('progress-by = "hope"', "'hope' is not one of 'bytes', 'any'. (set by the file of --config)"),
        ('stall-after = [5]', "FILE: stall-after = [5]: write a text or a number"),
        ('quiet = "yes"', "FILE: quiet = 'yes': write true or false"),
        ('env = "NOVALUE"', "--env 'NOVALUE' is not NAME=VALUE: write it like --env TT_CACHE_PATH=/mnt/cache"),
        ('stall-after = ', "--config FILE is not TOML: Invalid value (at line 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_sentence(here, text, sentence):
    path = here / "c.toml"
    path.write_text(text + "\n")
    told = refused("--cache-dir", "/c", "--config", str(path))
    assert sentence.replace("FILE", str(path)) in " ".join(told.split())
    if not told.startswith("Usage"):
        assert "\n" not in told


def test_a_wrong_value_of_the_environment_is_told_with_its_variable():
    told = refused("--cache-dir", "/c", CACHEWATCH_GRACE="soon")
    assert "'soon' is not a duration: write it like 90s, 5m or 1h30m (set by CACHEWATCH_GRACE)" in " ".join(
        told.split()
    )


@pytest.mark.parametrize("given", ["", "missing.toml", "."])
def test_a_file_that_cannot_be_read_is_one_sentence(given):
    assert refused("--cache-dir", "/c", "--config", given).startswith(f"--config {given} cannot be read: ")


@pytest.mark.parametrize("name", SECTIONED)
def test_no_variable_of_an_option_means_something_else(name):
    group = command_group(COMMANDS)
    command: Any = group.get_command(click.Context(group), name)
    variables = {variable_of(key) for key in command.settable()}
    assert len(variables) > 6
    assert "CACHEWATCH_CONFIG" not in variables
    written: set[str] = set()
    for folder in ("src", "flows", "tasks", "deployments"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in (".py", ".yaml", ".yml", "", ".sh"):
                written |= set(re.findall(r"CACHEWATCH_[A-Z][A-Z_]*", path.read_text(errors="replace")))
    assert {"CACHEWATCH_STATE", "CACHEWATCH_ID", "CACHEWATCH_SLOT_LEASE_S"} <= written
    assert not variables & (written - {"CACHEWATCH_STALL_AFTER"})


def test_what_only_shows_something_is_no_setting():
    assert not {"help-all", "config", "help"} & set(exec_command.settable())
