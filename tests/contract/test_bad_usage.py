"""Bad usage of the command is one line that names what is wrong and what to do; nothing is started."""

from __future__ import annotations

import os

import pytest

from tests.contract.harness import Place, assert_refused
from tests.support import needs_root

# What is given, and words of the answer: what is wrong with which option, and what to do about it.
BAD_USAGE = {
    "no duration": (["--stall-after", "soon"], "--stall-after", "'soon'", "5m"),
    "too short": (["--stall-after", "0"], "--stall-after 0 s", "at least 0.2 s"),
    "too long": (["--stall-after", "900d"], "--stall-after 900 days", "at most 7 days"),
    "a number of 400 digits": (["--grace", "9" * 400 + "d"], "--grace", "5m"),
    "a limit of 0": (["--max-duration", "0"], "--max-duration 0 s", "at least 0.2 s"),
    "a limit with an exponent": (["--max-duration", "2.34e+5d"], "--max-duration 234000 days", "at most 28 days"),
    "a limit that is negative": (["--max-duration", " -0.1"], "--max-duration", "90s, 5m"),
    "no size": (["--expect", "lots"], "--expect", "'lots'", "10MB"),
    "no choice": (["--wait-for", "hope"], "--wait-for", "'hope'", "'tree', 'leader'"),
    "no pair": (["--env", "NOVALUE"], "--env 'NOVALUE'", "NAME=VALUE"),
    "empty directory": (["--cache-dir", ""], "--cache-dir is empty", "name the directory"),
    "report nowhere": (["--report", "/nowhere/r.json"], "/nowhere/r.json", "create it first"),
    "log nowhere": (["--log", "/nowhere/log"], "/nowhere/log", "No such file or directory"),
    "log that is a directory": (["--log", "/tmp/"], "/tmp/", "name a file in it"),
    "log in the cache": (["--log", "cache/run.txt"], "run.txt", "put it elsewhere"),
    "report that is the cache": (["--report", "cache"], "cache", "name a file"),
    "report that would be growth": (["--on-stall", "report", "--report", "cache/r.json"], "r.json", "put it elsewhere"),
    "record in a directory that is not there": (["--record", "out/"], "out/", "create it first"),
    "no way to show it": (["--progress", "loud"], "--progress", "'live', 'plain'"),
    "what counts, not how it is shown": (["--progress", "any"], "--progress-by any"),
    "unknown option": (["--dance"], "--dance", "cachewatch exec --help"),
    "option of generate": (["--attempts", "3"], "--attempts", "cachewatch generate --help-all"),
    "option without its value": (["--log", "--poll", "1s"], "'--log' requires an argument", "--help"),
    "no pattern": (["--progress-log", "("], "--progress-log", "regular expression"),
    "no way to be ready": (["--ready", "soon"], "--ready 'soon'", "http=URL"),
    "stop of no server": (["--then", "stop"], "--then", "--ready"),
    "unreadable settings": (["--config", "missing.toml"], "--config missing.toml", "No such file"),
    "no such profile": (["--profile", "openvion"], "no profile 'openvion'", "did you mean openvino?"),
    "profile without what it needs": (["--profile", "openvino"], "openvino needs the parameter cache_dir"),
    "too large": (["--expect", "8000TiB"], "8000 TiB", "its file system has"),
}


@pytest.mark.parametrize("case", BAD_USAGE)
def test_bad_usage_is_one_line_and_nothing_runs(place: Place, case: str) -> None:
    given, *words = BAD_USAGE[case]
    place.cache.mkdir()
    ran = place.run("exec", "--cache-dir", "cache", *given, "--", "touch", "ran")
    assert_refused(ran, 125, *words)
    assert not (place.root / "ran").exists()
    assert os.listdir(place.cache) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exec", "--", "true"], ("--cache-dir DIR", "--profile")),
        (["exec", "--cache-dir", "cache"], ("no command", "-- COMMAND")),
        (["exce", "--", "true"], ("'exce'", "did you mean exec?")),
        (["exe\x1b[2Jc"], ("exe\\\\x1b[2Jc", "did you mean exec?")),
        (["fleet"], ("JOBS.yaml", "cachewatch fleet --help")),
        (["generate", "--cache-dir", "cache", "--log", "cache/log.txt", "--", "true"], ("log.txt", "put it elsewhere")),
        (
            ["generate", "--store", ".", "--name", "m", "--key", "a=b", "--", "true"],
            ("put {cache_dir}", "PATH={cache_dir}"),
        ),
        (["generate", "-q", "--log", "--", "true"], ("'--log' requires an argument", "cachewatch generate --help")),
    ],
    ids=[
        "no directory",
        "no command",
        "unknown command",
        "hostile command",
        "missing argument",
        "log",
        "not told where",
        "no value",
    ],
)
def test_what_is_missing_or_misspelt_is_named_in_one_line(
    place: Place, words: list[str], said: tuple[str, ...]
) -> None:
    assert_refused(place.run(*words), 125, *said)


def test_settings_name_the_file_or_the_variable_they_come_from(place: Place) -> None:
    (place.root / "c.toml").write_text('stal-after = "5m"\n')
    assert_refused(
        place.run("exec", "--cache-dir", "cache", "--config", "c.toml", "--", "true"),
        125,
        "c.toml",
        "did you mean stall-after?",
    )
    place.env["CACHEWATCH_GRACE"] = "soon"
    assert_refused(place.run("exec", "--cache-dir", "cache", "--", "true"), 125, "'soon'", "5m", "CACHEWATCH_GRACE")


@pytest.mark.parametrize(
    ("directory", "words"),
    [
        ("/", ("the root directory", "of its own below it")),
        ("home", ("the home directory", "of its own below it")),
        ("/proc", ("root of a mounted file system", "of its own below it")),
        ("file", ("file", "not a directory", "name the directory")),
        ("file/below", ("file/below", "cannot be")),
        ("closed", ("cannot be written to", "Permission denied")),
        ("closed/new", ("cannot be created", "Permission denied")),
    ],
)
def test_a_directory_that_cannot_be_the_caches_is_refused(place: Place, directory: str, words: tuple[str, ...]) -> None:
    place.env["HOME"] = str(place.root / "home")
    (place.root / "home").mkdir()
    (place.root / "file").touch()
    (place.root / "closed").mkdir(mode=0o555)
    if os.geteuid() == 0:  # without the capability to override permissions root is like anybody else
        place.before = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    assert_refused(place.run("exec", "--cache-dir", directory, "--", "touch", place.root / "ran"), 125, *words)
    assert not (place.root / "ran").exists()


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        (
            "mount -t tmpfs -o size=4m none M; mkdir M/cache; head -c 9m /dev/zero > M/fill || :",
            ("is full", "make room"),
        ),
        ("mount -t tmpfs -o nr_inodes=3 none M; mkdir M/cache; touch M/a || :", ("no free inodes", "remove files")),
        ("mount -t tmpfs none M; mkdir M/cache; mount -o remount,ro M", ("cannot be written to", "read-only")),
    ],
    ids=["full", "no inode", "read-only"],
)
def test_a_file_system_that_takes_nothing_is_refused_at_the_start(
    place: Place, mount: str, words: tuple[str, ...]
) -> None:
    needs_root("mounting a file system")
    (place.root / "M").mkdir()
    place.mounts(f"{{ {mount}; }} 2>/dev/null")
    assert_refused(place.run("exec", "--cache-dir", "M/cache", "--", "touch", place.root / "ran"), 125, *words)
    assert not (place.root / "ran").exists()


def test_a_present_directory_that_was_removed_is_said(place: Place) -> None:
    place.before = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"]
    assert_refused(
        place.run("exec", "--cache-dir", place.cache, "--", "true"), 125, "has been removed", "change to another"
    )


def test_the_command_alone_shows_its_help_and_the_version_is_one_line(place: Place) -> None:
    ran = place.run()
    assert (ran.status, "Usage: cachewatch" in ran.stdout + ran.stderr) == (125, True)
    ran = place.run("--version")
    assert (ran.status, ran.stdout.count("\n"), ran.stderr) == (0, 1, "")
