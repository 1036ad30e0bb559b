"""Readiness as it is typed: what it becomes, and one sentence for what is wrong."""

from __future__ import annotations

import pytest

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
NONE = {"ready": "exit", "then": None, "warmup_within_s": None}


def ready(text: str, **options: object):
    return with_ready(JOB, {**NONE, "ready": text, **options}).ready


@pytest.mark.parametrize(
    ("text", "options", "meant"),
    [
        ("exit", {}, ReadyOnExit()),
        ("http=http://h:8000/health", {}, ReadyOnHttp(url="http://h:8000/health")),
        ("http=http://h/?a=b", {}, ReadyOnHttp(url="http://h/?a=b")),
        ("tcp=127.0.0.1:8000", {"then": "stop"}, ReadyOnTcp(port=8000, then="stop")),
        ("tcp=8000", {"then": "leave-running"}, ReadyOnTcp(port=8000)),
        ("tcp=[::1]:8000", {}, ReadyOnTcp(host="::1", port=8000)),
        ("file=DONE", {}, ReadyOnFile(path="DONE")),
        ("log=a=b", {}, ReadyOnLog(pattern="a=b")),
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
        ("tcp=h", {}, "--ready tcp=h is not HOST:PORT: write it like --ready tcp=127.0.0.1:8000"),
        ("exit", {"then": "stop"}, "--then is for a server: say when it is ready, as in --ready http=http://"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_one_sentence(text, options, sentence):
    with pytest.raises(InputError) as caught:
        ready(text, **options)
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message
