"""What makes another key: values, variables and files that the user names, the command and the image."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.run.delivery import PublishSession
from prefect_cachewatch.store.policy import PublishPolicy


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("MESH_DEVICE", "N150")
    monkeypatch.delenv("OTHER", raising=False)

    def session(env=None, **policy):
        job = CacheJob(name="c", command=["gen", "{cache_dir}"], env=env or {})
        return PublishSession(job, PublishPolicy(store=tmp_path, **policy))

    return session


def test_the_environment_counts_only_where_a_variable_is_named(session):
    plain = session().recipe
    assert plain.cache_key == {} and session({"MESH_DEVICE": "N300"}).recipe.key == plain.key
    named = session(key_env=["MESH_DEVICE", "OTHER"]).recipe
    assert named.cache_key == {"MESH_DEVICE": "N150"}, "one that is not set is left out"
    keys = {plain.key, named.key} | {
        session(env, key_env=["MESH_DEVICE", "OTHER"]).recipe.key for env in ({"MESH_DEVICE": "N300"}, {"OTHER": ""})
    }
    assert len(keys) == 4


def test_a_file_counts_by_its_contents(session, tmp_path):
    file = tmp_path / "config.json"
    file.write_text("{}")
    one = session(key_files=[file]).recipe
    file.touch()
    assert session(key_files=[file]).recipe.key == one.key
    file.write_text("{1}")
    assert session(key_files=[file]).recipe.key != one.key
    assert list(one.cache_key) == [str(file)] and one.cache_key[str(file)].startswith("sha256:")


@pytest.mark.parametrize("how", ["gone", "directory", "large"])
def test_a_file_that_cannot_count_refuses_the_run(session, tmp_path, how):
    file: Path = tmp_path / "config.json"
    if how == "directory":
        file.mkdir()
    elif how == "large":
        with file.open("wb") as opened:
            opened.truncate((64 << 20) + 1)
    with pytest.raises(InputError, match=f"key file {file} (cannot be read|is no regular file)"):
        session(key_files=[file])


def test_a_secret_is_no_part_of_a_key(session):
    with pytest.raises(InputError, match="the variable HF_TOKEN is a secret"):
        session({"HF_TOKEN": "hf_" + "a" * 34}, key_env=["HF_TOKEN"])


def test_the_identifier_of_an_image_is_part_of_the_key(session):
    made = session()
    before = made.recipe.key
    made.know_image("")
    assert made.recipe.key == before
    made.know_image("sha256:1")
    assert made.recipe.key != before and made.recipe.cache_key == {"container image id": "sha256:1"}
