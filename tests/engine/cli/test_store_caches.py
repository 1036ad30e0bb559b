"""`cachewatch store list ROOT`: one line for each cache of a store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from prefect_cachewatch.cli.main import main
from prefect_cachewatch.store.key import BuildRecipe
from prefect_cachewatch.store.policy import PublishPolicy
from prefect_cachewatch.store.store import CacheStore


def listed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["store", "list", *map(str, words)])
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


def publish(root: Path, name: str, size: int, activate: bool = True) -> str:
    store, policy = CacheStore(root), PublishPolicy(store=root)
    with store.begin(name, BuildRecipe(("gen", "{cache_dir}"), {})) as build:
        Path(build.path, "a.bin").write_text("x" * size)
        build.publish(policy, findings=build.check(policy))
    if activate:
        store.activate(name)
    return build.build_id


def test_each_cache_is_one_line_with_its_current_build(tmp_path, capsys):
    publish(tmp_path, "llama", 2000)
    current = publish(tmp_path, "llama", 4096)
    publish(tmp_path, "qwen", 5, activate=False)
    (tmp_path / "other").mkdir()
    status, out, _ = listed(capsys, tmp_path)
    lines = [line.split() for line in out.splitlines()]
    assert status == 0 and max(map(len, out.splitlines())) <= 80
    assert lines[0] == ["NAME", "CURRENT", "SIZE", "FINISHED", "(UTC)", "BUILDS"]
    assert lines[1][:4] == ["llama", current, "4.00", "KiB"] and lines[1][-1] == "2"
    assert lines[2] == ["qwen", "-", "-", "-", "1"]
    first, second = json.loads(listed(capsys, tmp_path, "--json")[1])
    assert (first["name"], first["current"], first["state"], first["total_bytes"]) == ("llama", current, "active", 4096)
    assert (second["current"], second["finished_at"], second["builds"]) == (None, None, 1)


def test_a_damaged_current_build_and_a_cache_that_cannot_be_read_are_told(tmp_path, capsys):
    current = publish(tmp_path, "llama", 5)
    (tmp_path / "llama/builds" / f"{current}.json").write_text("{")
    publish(tmp_path, "qwen", 5)
    (tmp_path / "qwen/builds").rename(tmp_path / "aside")
    (tmp_path / "qwen/builds").symlink_to(tmp_path / "aside")
    status, out, _ = listed(capsys, tmp_path)
    lines = out.splitlines()
    assert status == 0 and len(lines) == 5 and current in lines[1]
    assert "manifest" in lines[2] and "is a symbolic link" in lines[4]


def test_a_long_or_hostile_name_breaks_no_line(tmp_path, capsys):
    publish(tmp_path, "llama-3.1-70b-instruct-n300", 5)
    os.makedirs(tmp_path / "\x1b[2Jx" / "builds")
    out = listed(capsys, tmp_path)[1]
    assert "\x1b" not in out and "\nllama-3.1-70b-instruct-n300\n" in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("    "))


@pytest.mark.parametrize(
    ("words", "status", "answer"),
    [(["{root}"], 0, "no cache in {root}\n"), (["/nowhere"], 125, "cachewatch: the store /nowhere does not exist")],
)
def test_an_empty_store_and_none_are_one_sentence(tmp_path, capsys, words, status, answer):
    found = listed(capsys, *(word.format(root=tmp_path) for word in words))
    assert found[0] == status and "".join(found[1:]).startswith(answer.format(root=tmp_path))
    assert "".join(found[1:]).count("\n") == 1
