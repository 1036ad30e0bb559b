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
        ("http=localhost:8000", {}, "--ready http: URL 'localhost:8000' does not begin with http:// or https://"),
        ("http=http://h/", {"status": 99}, "--ready-status: input should be greater than or equal to 100 (given: 99)"),
        ("tcp=h", {}, "--ready tcp=h is not HOST:PORT: write it like --ready tcp=127.0.0.1:8000"),
        ("tcp=h:80", {"status": 200}, "--ready-status belongs to --ready http=URL, and this is --ready tcp=...: leave it out"),
        ("log=up", {"warmup_begins": "soon"}, "--warmup-begins 'soon' is neither log=PATTERN nor file=PATH"),
        ("exit", {"then": "stop"}, "--then is for a server: say when it is ready, as in --ready http=http://"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(text, options, sentence):
    with pytest.raises(InputError) as caught:
        ready(text, **options)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


def test_nothing_is_started_for_a_readiness_that_cannot_be_meant(tmp_path: Path):
    ran = tmp_path / "ran"
    result = CliRunner().invoke(
        exec_command, ["--cache-dir", str(tmp_path / "c"), "--ready", "http=nowhere", "--", "touch", str(ran)]
    )
    assert isinstance(result.exception, InputError)
    assert not ran.exists()
    assert not (tmp_path / "c").exists()
