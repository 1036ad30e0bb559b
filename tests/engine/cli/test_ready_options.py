"""Readiness as it is typed: what it becomes, and one sentence for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from prefect_cachewatch.cli.exec_command import command as exec_command
from prefect_cachewatch.cli.options.ready import with_ready
from prefect_cachewatch.config import (
    CacheJob,
    ReadyOnExit,
    ReadyOnFile,
    ReadyOnHttp,
    ReadyOnLog,
    ReadyOnTcp,
)
from prefect_cachewatch.errors import InputError

JOB = CacheJob(name="x", command=["serve"], cache_dirs=["/mnt/x"])
NONE = {
    "ready": "exit", "status": None, "body_pattern": None, "check_every_s": None, "then": None,
    "warmup_within_s": None, "warmup_begins": None,
}  # fmt: skip


def ready(text: str, **options: object):
    return with_ready(JOB, {**NONE, "ready": text, **options}).ready


@pytest.mark.parametrize(
    ("text", "options", "meant"),
    [
        ("exit", {}, ReadyOnExit()),
        ("http=http://h:8000/health", {}, ReadyOnHttp(url="http://h:8000/health")),
        ("http=http://h/?a=b", {"status": 204, "body_pattern": "ok"}, ReadyOnHttp(url="http://h/?a=b", status=204, body_pattern="ok")),
        ("tcp=127.0.0.1:8000", {"then": "stop"}, ReadyOnTcp(port=8000, then="stop")),
        ("tcp=8000", {"then": "leave-running"}, ReadyOnTcp(port=8000)),
        ("tcp=[::1]:8000", {}, ReadyOnTcp(host="::1", port=8000)),
        ("file=DONE", {"check_every_s": 30.0}, ReadyOnFile(path="DONE", check_every_s=30, timeout_s=5)),
        ("file=DONE", {"check_every_s": 0.2}, ReadyOnFile(path="DONE", check_every_s=0.2, timeout_s=0.5)),
        ("log=a=b", {"warmup_begins": "log=model loaded"}, ReadyOnLog(pattern="a=b", warmup_begins_log="model loaded")),
        ("log=up", {"warmup_begins": "file=/run/loaded"}, ReadyOnLog(pattern="up", warmup_begins_file="/run/loaded")),
    ],
)  # fmt: skip
def test_what_is_typed_becomes_a_readiness(text, options, meant):
    assert ready(text, **options) == meant


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("soon", {}, "--ready 'soon' is none of the ways to be ready: write exit, http=URL, tcp=HOST:PORT, file=PATH or log=PATTERN"),
        ("http", {}, "--ready 'http' does not say what to wait for: write it like --ready http=http://127.0.0.1:8000/health"),
        ("exit=1", {}, "--ready 'exit=1' is none of the ways to be ready"),
        ("http=localhost:8000", {}, "--ready http: URL 'localhost:8000' does not begin with http:// or https://"),
        ("http=http://h/", {"status": 99}, "--ready-status: input should be greater than or equal to 100 (given: 99)"),
        ("http=http://h/", {"body_pattern": "("}, "--ready-body: pattern '(' is not a regular expression"),
        ("tcp=h", {}, "--ready tcp=h is not HOST:PORT: write it like --ready tcp=127.0.0.1:8000"),
        ("tcp=:80", {}, "--ready tcp=:80 is not HOST:PORT"),
        ("tcp=h:99999", {}, "--ready tcp: input should be less than or equal to 65535 (given: 99999)"),
        ("tcp=h:80", {"status": 200}, "--ready-status belongs to --ready http=URL, and this is --ready tcp=...: leave it out"),
        ("log=(a+)+", {}, "--ready log: pattern '(a+)+' repeats a repetition"),
        ("log=up", {"check_every_s": 1e9}, "--ready-every 11574 days 1 h is out of range: give at most 1 h"),
        ("log=up", {"warmup_begins": "soon"}, "--warmup-begins 'soon' is neither log=PATTERN nor file=PATH"),
        ("log=up", {"warmup_begins": "log=.*"}, "--warmup-begins: pattern '.*' matches an empty text"),
        ("exit", {"then": "stop"}, "--then is for a server: say when it is ready, as in --ready http=http://"),
        ("exit", {"warmup_within_s": 60.0}, "--warmup-within is for a server"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(text, options, sentence):
    with pytest.raises(InputError) as caught:
        ready(text, **options)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


def test_the_help_fits_a_terminal_and_names_the_options():
    shown = CliRunner().invoke(exec_command, ["--help-all"], terminal_width=80).output
    assert max(map(len, shown.splitlines())) <= 80
    for option in ("--ready ", "--ready-status", "--then", "--warmup-within", "--warmup-begins"):
        assert option in shown


def test_nothing_is_started_for_a_readiness_that_cannot_be_meant(tmp_path: Path):
    ran = tmp_path / "ran"
    result = CliRunner().invoke(
        exec_command, ["--cache-dir", str(tmp_path / "c"), "--ready", "http=nowhere", "--", "touch", str(ran)]
    )
    assert isinstance(result.exception, InputError)
    assert not ran.exists()
    assert not (tmp_path / "c").exists()
