"""When a job is done, as people write it: what is accepted, refused, and shown as a form."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from prefect_cachewatch.config import CacheJob

JOB = {"name": "x", "command": ["true"], "cache_dirs": ["/mnt/x"]}
HEALTH = "http://127.0.0.1:8000/health"


def ready(**values):
    return CacheJob(**JOB, ready=values).ready


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "exit"},
        {"kind": "http", "url": "https://models.example:8443/v1/health?full=1"},
        {"kind": "http", "url": "http://[::1]:8000/health"},
        {"kind": "tcp", "port": 8000},
        {"kind": "tcp", "host": "::1", "port": 65535},
        {"kind": "file", "path": "TT_METAL_CACHE_COMPLETED"},
        {"kind": "log", "pattern": r"Uvicorn running on http://\S+:\d+"},
    ],
)
def test_what_people_write_is_accepted_and_comes_back_from_json(values):
    job = CacheJob(**JOB, ready=values)
    assert CacheJob.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "http", "url": "localhost:8000/health"}, "does not begin with http:// or https://"),
        ({"kind": "http", "url": "http:///health"}, "names no host"),
        ({"kind": "http", "url": "http://host:0/"}, "names no port"),
        ({"kind": "http", "url": "http://host:99999/"}, "is not one"),
        ({"kind": "http", "url": "http://host/a b"}, "blank or control character"),
        ({"kind": "http", "url": "http://me:secret@host/"}, "user name or password"),
        ({"kind": "http"}, "Field required"),
        ({"kind": "tcp", "port": 0}, "greater than or equal to 1"),
        ({"kind": "file", "path": "/"}, "names no file"),
        ({"kind": "file", "path": "a\0b"}, "NUL"),
        ({"kind": "log", "pattern": "[a"}, "is not a regular expression"),
        ({"kind": "log", "pattern": ".*"}, "matches an empty text"),
        ({"kind": "http", "url": HEALTH, "pattern": "typo"}, "Extra inputs are not permitted"),
        ({"kind": "grpc"}, "does not match any of the expected tags"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_and_the_message_says_why(values, words):
    with pytest.raises(ValidationError) as caught:
        ready(**values)
    assert words in str(caught.value)


def test_a_password_in_a_url_does_not_stand_in_the_message():
    with pytest.raises(ValidationError) as caught:
        ready(kind="http", url="http://me:hunter2hunter2@host/")
    assert "hunter2" not in caught.value.errors()[0]["msg"]


def test_the_form_shows_the_kinds_as_a_union_that_both_prefect_uis_draw():
    schema = CacheJob.model_json_schema()["properties"]["ready"]
    assert [each["$ref"].rpartition("/")[2] for each in schema["anyOf"]] == [
        "ReadyOnExit", "ReadyOnHttp", "ReadyOnTcp", "ReadyOnFile", "ReadyOnLog",
    ]  # fmt: skip
    assert "oneOf" not in schema
    assert schema["discriminator"]["propertyName"] == "kind"
    assert schema["default"] == {"kind": "exit"}
