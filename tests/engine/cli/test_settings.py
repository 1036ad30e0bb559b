"""Options from the environment and from a file: which one counts, and one sentence for what is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
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
    result = CliRunner().invoke(
        command_group(COMMANDS), ["exec", *options, "--", "true"], env=environ, obj=lambda found: got.append(found) or 0
    )
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
    (here / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[tool.cachewatch]\ncache_dir = ["/c", "/d"]\nstall-after = 600\nmin-growth = "1MiB"\n'
        'quiet = true\nadaptive = false\nreport = "r.json"\nignore = "*.x"\nattempts = 5\n'
        '[tool.cachewatch.env]\nA = "1=2"\nB = 3\n'
        '[tool.cachewatch.exec]\nwait-for = "leader"\n[tool.cachewatch.watch]\npid = 4711\n'
    )
    found = settings()
    assert [str(path) for path in found.job.cache_dirs] == ["/c", "/d"]
    assert (found.stall.stall_after_s, found.stall.min_growth_bytes, found.stall.adaptive) == (600, 2**20, "off")
    assert (found.quiet, found.outputs.report, found.job.wait_for) == (True, Path("r.json").absolute(), "leader")
    assert found.job.env == {"A": "1=2", "B": "3"}
    assert found.job.ignore[0] == "*.x"


def test_a_file_of_its_own_may_have_the_table_of_pyproject(here):
    text = '[build-system]\nrequires = []\n[tool.ruff]\nline-length = 100\n[tool.cachewatch]\nstall-after = "7m"\n'
    (here / "own.toml").write_text(text + "[tool.cachewatch.exec]\nquiet = true\n")
    found = settings("--cache-dir", "/c", "--config", "own.toml")
    assert (found.stall.stall_after_s, found.quiet) == (420, True)


def test_the_environment_has_one_value_a_line_and_words_for_flags():
    found = settings(
        CACHEWATCH_CACHE_DIR="/a b\n/c", CACHEWATCH_QUIET="yes", CACHEWATCH_ADAPTIVE="0", CACHEWATCH_POLL=""
    )
    assert [str(path) for path in found.job.cache_dirs] == ["/a b", "/c"]
    assert (found.quiet, found.stall.adaptive, found.stall.poll_s) == (True, "off", 15)


def test_a_profile_stands_below_what_was_set_anywhere(here):
    (here / "pyproject.toml").write_text('[tool.cachewatch]\nprofile = "openvino,cache_dir=/mnt/ov"\n')
    assert settings().stall.stall_after_s == 600
    assert settings(CACHEWATCH_STALL_AFTER="5m").stall.stall_after_s == 300


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('stal-after = "5m"', "FILE: stal-after is no option of cachewatch exec: did you mean stall-after?"),
        ('[exec]\nattempts = 3', "FILE: exec.attempts is no option of cachewatch exec (see --help-all)"),
        ('x = "5m"', "FILE: x is no option of cachewatch exec (see --help-all)"),
        ('help-all = true', "FILE: help-all is no option of cachewatch exec"),
        ('stall-after = "1ms"', "--stall-after 0 s is out of range: give at least 0.2 s (set by stall-after in FILE)"),
        ('stall-after = "soon"', "'soon' is not a duration: write it like 90s, 5m or 1h30m (set by stall-after in FILE)"),
        ('progress-by = "hope"', "'hope' is not one of 'bytes', 'any'. (set by progress-by in FILE)"),
        ('stall-after = [5]', "FILE: stall-after = [5]: write a text or a number"),
        ('stall-after = true', "FILE: stall-after = True: write a text or a number"),
        ('quiet = "yes"', "FILE: quiet = 'yes': write true or false"),
        ('env = "NOVALUE"', "--env 'NOVALUE' is not NAME=VALUE: write it like --env TT_CACHE_PATH=/mnt/cache (set by env in FILE)"),
        ('rewrite = "X:Y"', "as TERM:INT, or :0 to ignore the first (set by rewrite in FILE)"),
        ('ready = "soon"', "file=PATH or log=PATTERN (set by ready in FILE)"),
        ('volume = "/a:/b"', "--volume is for a container: name its image with --image (set by volume in FILE)"),
        ('stall-after = ', "settings file FILE is not TOML: Invalid value (at line 1"),
        ('exec = 3', "FILE: exec is no table: write [tool.cachewatch]"),
        ('[cachewatch]\nquiet = true', "FILE: [cachewatch] is not known: write [tool.cachewatch], or its keys without a table"),
        ('quiet = true\n[tool.cachewatch]\ngrace = "1s"', "FILE has [tool.cachewatch], and quiet outside it: write all of them in one place"),
        ('[exec]\nquiet = true\n[tool.cachewatch]', "FILE has [tool.cachewatch], and exec outside it"),
        ('\0', "settings file FILE is not TOML"),
        ("#" * 2**20, "settings file FILE cannot be read: it has more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_sentence_with_file_and_key(here, text, sentence):
    path = here / "c.toml"
    path.write_text(text + "\n")
    told = refused("--cache-dir", "/c", "--config", str(path))
    assert sentence.replace("FILE", str(path)) in " ".join(told.split())
    if not told.startswith("Usage"):
        assert "\n" not in told


def test_a_wrong_value_of_the_environment_is_told_with_its_variable():
    told = refused("--cache-dir", "/c", CACHEWATCH_GRACE="2h")
    assert told == "--grace 2 h is out of range: give at most 1 h (set by CACHEWATCH_GRACE)"
    assert refused("--cache-dir", "/c", "--grace", "3h", CACHEWATCH_GRACE="2h").endswith("give at most 1 h")


@pytest.mark.parametrize("given", ["", "missing.toml", "."])
def test_a_file_that_cannot_be_read_is_one_sentence(given):
    told = refused("--cache-dir", "/c", "--config", given)
    assert told.startswith(("--config is empty", "settings file /"))


def test_somebody_elses_pyproject_is_not_believed_unless_it_is_named(here):
    path = here / "pyproject.toml"
    path.write_text('[tool.cachewatch]\nlog = "/home/me/.bashrc"\n')
    path.chmod(0o666)
    assert refused("--cache-dir", "/c").startswith(
        f"{path} has settings for cachewatch and may be written by another user"
    )
    assert settings("--cache-dir", "/c", "--config", str(path)).outputs.log == Path("/home/me/.bashrc")
    assert settings("--cache-dir", "/c", "--config", "/dev/null").outputs.log is None
    path.write_text('[project]\nname = "nothing of ours"\n')
    assert settings("--cache-dir", "/c").outputs.log is None


def test_below_another_command_what_belongs_to_one_run_comes_from_the_command_line_alone(here):
    (here / "pyproject.toml").write_text('[tool.cachewatch]\nlog = "log"\nstall-after = "7m"\n')
    below = {
        "CACHEWATCH_ID": "0" * 32,
        "CACHEWATCH_REPORT": "/r",
        "CACHEWATCH_CACHE_DIR": "/c",
        "CACHEWATCH_POLL": "1s",
    }
    found = settings("--cache-dir", "/c", **below)
    assert (found.outputs.report, found.outputs.log, found.stall.stall_after_s, found.stall.poll_s) == (
        None,
        None,
        420,
        1,
    )
    assert re.search(
        r"\(not used below another cachewatch: .*CACHEWATCH_CACHE_DIR, CACHEWATCH_REPORT",
        refused("--image", "x", **below),
    )


@pytest.mark.parametrize("name", SECTIONED)
def test_no_variable_of_an_option_means_something_else(name):
    group = command_group(COMMANDS)
    command: Any = group.get_command(click.Context(group), name)
    variables = {variable_of(key) for key in command.settable()}
    assert len(variables) > 8
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
