"""The profile against what tt-inference-server's own code answered: tests/data/tt_inference_server says how it was asked."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.generators.derive_tt import DATA, documented_commands

from prefect_cachewatch.config.profiles import ProfileSettings, find_profile, known, make_profile, recognize_profile
from prefect_cachewatch.config.profiles.tt_specifications import _entries, read_specification
from prefect_cachewatch.errors import InputError

SPECS = DATA / "release_model_spec.json"
EXPECTED = json.loads((DATA / "expected.json").read_text())
ENTRIES = list(_entries(json.loads(SPECS.read_text()), "specs"))
RUN = "python3 {}/run.py --model Llama-3.1-8B-Instruct --workflow server --tt-device n300 --local-server"


@pytest.fixture
def read_once(monkeypatch):
    """The file is read here and not in a process of its own for each of hundreds of entries."""
    data = json.loads(SPECS.read_text())
    monkeypatch.setattr("prefect_cachewatch.config.profiles.tt_specifications._load", lambda path, shown: data)
    definition = find_profile("tt-inference-server")
    monkeypatch.setattr(known, "find_profile", lambda name: definition)


@pytest.fixture
def checkout(tmp_path) -> Path:
    shutil.copy(SPECS, tmp_path)
    return tmp_path


def server(**values: object) -> ProfileSettings:
    return make_profile("tt-inference-server", values).settings


def llama(**values: object) -> ProfileSettings:
    return server(**{"model": "Llama-3.1-8B-Instruct", "device": "n300", **values})


@pytest.mark.usefixtures("read_once")
def test_every_server_of_the_vllm_engine_writes_where_upstreams_code_says():
    assert len(EXPECTED["places"]) == 128
    for place in EXPECTED["places"]:
        asked = {name: place[name] for name in ("model", "device", "impl")}
        settings = server(**asked, specs=SPECS, host_volume="/mnt/tt")
        root, tensors = Path(place["root"]), Path(place["root"], place["tensors"])
        assert (settings.cache_dirs[0], settings.cache_dirs[2]) == (tensors, root / place["weights"])
        assert settings.env == {
            "MESH_DEVICE": place["mesh_device"],
            "TT_CACHE_PATH": str(tensors),
            "TT_METAL_CACHE": f"{tensors}-kernels",
            "CACHE_ROOT": str(root),
            "TT_SERVER_BOOT_ATTEMPTS": "1",
        }
        assert settings.stall["max_duration_s"] == place["timeout_s"]
        assert server(**asked, checkout="/repo").env["CACHE_ROOT"] == str(Path("/repo", place["persistent"]))
        docker = server(**asked, specs=SPECS, docker_volume="auto")
        volume = Path("/var/lib/docker/volumes", place["docker_volume"], "_data")
        assert docker.cache_dirs[0] == volume / place["tensors"]


@pytest.mark.usefixtures("read_once")
def test_an_entry_is_chosen_as_run_py_chooses_it_and_another_engine_is_refused():
    engines = Counter(engine for *_, engine in EXPECTED["defaults"])
    assert (len(ENTRIES), engines) == (225, {"vLLM": 127, "media": 69, "forge": 26})
    for model, device, impl, engine in EXPECTED["defaults"]:
        if engine == "vLLM":
            assert read_specification(SPECS, model, device).impl_name == impl
        else:
            with pytest.raises(
                InputError, match=f"{model} on {device} runs on the {engine} engine, which does not write to"
            ):
                read_specification(SPECS, model, device)


def test_windows_and_markers_are_upstreams():
    settings = llama(tt_cache_path="/c")
    assert settings.stall["stall_after_s"] == EXPECTED["no_change_s"]
    assert EXPECTED["markers"] == [str(settings.markers.started), str(settings.markers.completed)]


def test_run_py_takes_every_command_of_the_pages():
    assert [entry["words"] for entry in EXPECTED["commands"]] == documented_commands(), "run tests.generators.derive_tt"
    assert len(EXPECTED["commands"]) >= 3
    assert [entry for entry in EXPECTED["commands"] if "refused" in entry] == []


def test_a_checkout_is_read_and_what_is_said_goes_before_it(checkout):
    root = checkout / "persistent_volume" / "volume_id_tt_transformers-Llama-3.1-8B-Instruct-v0.9.0"
    assert llama(checkout=checkout).env["CACHE_ROOT"] == str(root)
    other = f"{root.name.partition('-v')[0]}-v1.2"
    assert llama(checkout=checkout, version="1.2").env["CACHE_ROOT"] == str(root.with_name(other))
    assert llama(checkout=checkout, weights=False).cache_dirs[2:] == ()
    assert llama(checkout=checkout, tt_cache_path="/c").stall["max_duration_s"] == 3600


def test_run_py_is_known_by_its_checkout_and_watched_where_it_writes(checkout):
    def dirs(*more: str) -> list[str]:
        name, found = recognize_profile([*RUN.format(checkout).split(), *more], {}, "/w")
        assert (name, found.env, "max_duration_s" in found.stall) == ("tt-inference-server", {}, False)
        return [str(path) for path in found.cache_dirs]

    volume = "volume_id_tt_transformers-Llama-3.1-8B-Instruct-v0.9.0"
    tensors, weights = "tt_metal_cache/cache_Llama-3.1-8B-Instruct/N300", "weights/Llama-3.1-8B-Instruct"
    here = f"{checkout}/persistent_volume/{volume}"
    assert dirs() == dirs("--host-volume", "--no-auth") == [f"{here}/{tensors}", f"{here}/{weights}"]
    assert dirs("--host-volume", "/mnt/tt") == [f"/mnt/tt/{volume}/{tensors}", f"/mnt/tt/{volume}/{weights}"]
    assert dirs("--host-hf-cache") == [f"{here}/{tensors}"]
    assert dirs("--dev-mode") == dirs("--impl", "gpt-oss") == []


BROKEN = "is no model specification file as of tt-inference-server 0.20: name its release_model_spec.json"


@pytest.mark.parametrize(
    ("written", "values", "sentence"),
    [
        (None, {}, "specification file {} cannot be read (No such file or directory): check the path"),
        ("{", {}, "{} is not JSON: name release_model_spec.json of tt-inference-server"),
        ("[]", {}, "{} " + BROKEN), ('{"model_specs": {"m": {"N300": {"vLLM": {"x": {}}}}}}', {}, "{} " + BROKEN),
        (SPECS, {"model": "Llama-3.1-8B-Instrct"}, "{} has no model 'Llama-3.1-8B-Instrct': did you mean Llama-3.1-8B-Instruct?"),
        (SPECS, {"model": "x"}, "{} has no model 'x': run.py --help lists them"),
        (SPECS, {"device": "quad_galaxy", "model": "Qwen3-32B"},
         "{} has no Qwen3-32B on quad_galaxy: use one of galaxy, galaxy_t3k, p150x8, p300x2, t3k"),
        (SPECS, {"impl": "tt_transformer"}, "{}: Llama-3.1-8B-Instruct on n300 has no impl 'tt_transformer': did you mean "
         "tt_transformers?"),
        (SPECS, {"model": "whisper-large-v3", "device": "n150"},
         "whisper-large-v3 on n150 runs on the media engine, which does not write to TT_CACHE_PATH: leave the profile out, and "
         "name the directories that its server writes with --cache-dir"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_help_is_one_sentence(tmp_path, written, values, sentence):
    path = tmp_path / "specs.json"
    if written is not None:
        path.write_text(written.read_text() if isinstance(written, Path) else written)
    with pytest.raises(InputError) as caught:
        llama(specs=path, host_volume="/mnt/tt", **values)
    assert caught.value.message == sentence.format(path)


@pytest.mark.parametrize(
    ("field", "value", "wrong"),
    [
        ("version", "/../../x", "version"), ("version", "1\0", "version"), ("impl", "../x", "impl_id"),
        ("timeout", -5, "tensor_cache_timeout"), ("timeout", float("inf"), "tensor_cache_timeout"),
        ("mesh", "N300\x1b[31m", "MESH_DEVICE"), ("subdevice", "t3k/..", "subdevice"),
        ("subdevice", "t9k", "sub-device t9k of the specification is not known"), ("timeout", 10**400, BROKEN),
    ],
)  # fmt: skip
def test_values_that_no_server_has_are_refused_in_one_sentence(tmp_path, field, value, wrong):
    data = json.loads(SPECS.read_text())
    level = [data["model_specs"]]
    for _ in range(4):
        level = [below for above in level for below in above.values()]
    for entry in level:
        where, key = {
            "version": (entry, "version"), "impl": (entry["impl"], "impl_id"), "subdevice": (entry, "subdevice_type"),
            "timeout": (entry["device_model_spec"], "tensor_cache_timeout"), "mesh": (entry["env_vars"], "MESH_DEVICE"),
        }[field]  # fmt: skip
        where[key] = value
    path = tmp_path / "specs.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        llama(specs=path, host_volume="/mnt/tt")
    assert wrong in caught.value.message and caught.value.message.isprintable()
