"""What the parameters of a profile put into the key of a cache: they decide variables, which the command does not show."""

from __future__ import annotations

import json

from tests.generators.derive_tt import DATA

from prefect_cachewatch.config.profiles import expand_profile, profile_key


def test_a_profiles_parameters_fill_the_key_of_a_written_job_below_its_own() -> None:
    profile = {"name": "tt-inference-server", "model": "o/m", "device": "n300", "cache_root": "/x"}
    assert profile_key(profile) == {"model": "m", "mesh": "N300", "implementation": "tt_transformers"}
    assert profile_key(None) == {}
    written = {"command": ["x"], "profile": profile, "publish": {"store": "/s", "cache_key": {"mesh": "mine"}}}
    assert expand_profile(written)["publish"]["cache_key"] == {
        "model": "m", "mesh": "mine", "implementation": "tt_transformers",
    }  # fmt: skip
    assert "publish" not in expand_profile({"command": ["x"], "profile": profile})


def test_a_specification_says_version_implementation_and_sub_device() -> None:
    specs = DATA / "release_model_spec.json"
    entry = next(
        each for each in json.loads((DATA / "expected.json").read_text())["places"] if each["device"] == "galaxy"
    )
    asked = {name: entry[name] for name in ("model", "device", "impl")}
    key = profile_key({"name": "tt-inference-server", **asked, "specs": str(specs), "host_volume": "/v"})
    assert key["model"] == entry["model"].rpartition("/")[2]
    assert key["mesh"] == "TG"
    assert f"volume_id_{key['implementation']}-{key['model']}-v{key['version'].removeprefix('v')}" in entry["root"]
