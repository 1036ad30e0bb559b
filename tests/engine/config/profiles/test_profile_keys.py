"""The key of a known generator's cache: what fills it, what differs by it, and what is said not to be known."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.generators.derive_tt import DATA

from prefect_cachewatch.cli.exec_command import KNOWN_PROGRAMS
from prefect_cachewatch.cli.main import main
from prefect_cachewatch.common.aside import Aside, InPlace
from prefect_cachewatch.config import CacheJob
from prefect_cachewatch.config.profiles import Profile, expand_profile, find_profile, known_profiles, profile_key
from prefect_cachewatch.config.profiles.key import KeySource
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.publish.policy import PublishPolicy
from prefect_cachewatch.run import filled_key
from prefect_cachewatch.run.delivery import PublishSession
from prefect_cachewatch.run.filled_key import FilledKey, fill_key, known_key

SERVE = ["vllm", "serve", "org/m"]
TT = ["python3", "/opt/tt/run.py", "--model", "m", "--tt-device", "n300"]
ENV = {"HOME": "/nowhere", "PATH": "/nowhere"}


def filled(command: list[str], around: dict[str, str] | None = None, **job: object) -> FilledKey:
    found = fill_key(CacheJob(name="c", command=command, **job), InPlace(), {**ENV, **(around or {})})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("command", "env", "profile", "values"),
    [
        ([*SERVE, "-tp", "4", "--dtype=half"], {"VLLM_TARGET_DEVICE": "cuda"}, "vllm-compile-cache",
         {"model": "org/m", "mesh": "4", "dtype": "half", "quantization": "none", "architecture": "cuda"}),
        ([*SERVE, "--uds", "/x"], {}, "vllm-compile-cache", {"dtype": "auto"}),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--host", "0", "--model", "m"], {}, "vllm-compile-cache",
         {"model": "m"}),
        (["python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "2", "--quantization", "fp8"], {}, "sglang",
         {"model": "m", "mesh": "2", "quantization": "fp8"}),
        (["trtllm-build", "--checkpoint_dir", "/c", "--max_batch_size", "8"], {}, "trtllm-build",
         {"model": "/c", "batch": "8"}),
        (["hf", "download", "org/m", "--revision", "abc"], {}, "hf-download", {"model": "org/m", "revision": "abc"}),
        (TT, {"ARCH_NAME": "wormhole_b0", "TT_VISIBLE_DEVICES": "0,1"}, "tt-inference-server",
         {"model": "m", "mesh": "n300", "architecture": "wormhole_b0", "sub-device": "2"}),
        (["python3", "compile.py", "--dtype", "bf16"], {"TORCHINDUCTOR_CACHE_DIR": "/c"}, "torch-compile", {"dtype": "bf16"}),
    ],
)  # fmt: skip
def test_command_and_environment_fill_the_key(
    command: list[str], env: dict[str, str], profile: str, values: dict[str, str]
) -> None:
    found = filled(command, env)
    assert found.profile == profile
    assert {name: found.values.get(name) for name in values} == values
    assert filled(command, env) == found
    # What exec looks for before it loads the profiles.
    assert {Path(word).name for word in command} & KNOWN_PROGRAMS or "TORCHINDUCTOR_CACHE_DIR" in env


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((SERVE, {}), ([*SERVE, "--dtype", "half"], {})),
        (([*SERVE, "-tp", "2"], {}), ([*SERVE, "-tp", "4"], {})),
        ((SERVE, {"TORCH_CUDA_ARCH_LIST": "8.0"}), (SERVE, {"TORCH_CUDA_ARCH_LIST": "9.0"})),
        ((SERVE, {"VLLM_KV_CACHE_LAYOUT": "NHD"}), (SERVE, {"VLLM_KV_CACHE_LAYOUT": "HND"})),
        ((TT[:-2], {"MESH_DEVICE": "N300"}), (TT[:-2], {"MESH_DEVICE": "T3K"})),
        ((TT, {"ARCH_NAME": "wormhole_b0"}), (TT, {"ARCH_NAME": "blackhole"})),
        ((TT, {"TT_VISIBLE_DEVICES": "0"}), (TT, {"TT_VISIBLE_DEVICES": "0,1"})),
    ],
)
def test_another_dtype_mesh_architecture_or_layout_is_another_key(
    one: tuple[list[str], dict[str, str]], other: tuple[list[str], dict[str, str]]
) -> None:
    assert filled(*one).values != filled(*other).values


def test_which_device_of_many_it_is_changes_no_key_and_neither_does_a_port() -> None:
    assert filled(TT, {"TT_VISIBLE_DEVICES": "0"}) == filled(TT, {"TT_VISIBLE_DEVICES": "3"})
    assert filled(SERVE, {"CUDA_VISIBLE_DEVICES": "0"}) == filled(
        [*SERVE, "--port", "9"], {"CUDA_VISIBLE_DEVICES": "1"}
    )


HF = ["hf", "download", "org/m"]
TORCH = ["python3", "compile.py"]
COMPILES = {"TORCHINDUCTOR_CACHE_DIR": "/c"}


@pytest.mark.parametrize(
    ("command", "env", "name", "value"),
    [
        ([*SERVE, "--dtype", "half", "--dtype", "bfloat16"], {}, "dtype", "bfloat16"),
        ([*SERVE, "--kv_cache_dtype=fp8", "--kv-cache-dtype", "auto"], {}, "cache dtype", "auto"),
        ([*TT, "--tt-device=t3k"], {}, "mesh", "t3k"),
        ([*HF, "--revision", "a", "--revision", "b"], {}, "revision", "b"),
        # It takes the last of one name; which of two names it takes is not certain.
        ([*SERVE, "-tp", "2", "--tensor-parallel-size", "4", "-tp", "8"], {}, "mesh",
         '["-tp=8", "--tensor-parallel-size=4"]'),
        ([*SERVE, "-tp", "4", "--tensor-parallel-size", "4"], {}, "mesh", "4"),
        ([*SERVE, "--model", "org/n"], {}, "model", '["org/m", "--model=org/n"]'),
        # It joins them.
        ([*SERVE, "-O3", "-O.mode=2"], {}, "build variant", '["-O=3", "-O.mode=2"]'),
        ([*SERVE, "-O3"], {}, "build variant", "3"),
        ([*HF, "--include", "*.gguf", "--include", "*.json"], {}, "layout", '["--include=*.gguf", "--include=*.json"]'),
        ([*HF, "--include", "*.gguf"], {}, "layout", "*.gguf"),
        ([*HF, "--quiet", "a.gguf", "--revision", "r", "b.gguf"], {}, "files", '["a.gguf", "b.gguf"]'),
        (["hf", "download", "--revision", "r", "org/m"], {}, "model", "org/m"),
        # The program is not known.
        ([*TORCH, "--dtype", "a", "--dtype", "b"], COMPILES, "dtype", '["--dtype=a", "--dtype=b"]'),
        ([*TORCH, "--dtype", "a", "--dtype", "a"], COMPILES, "dtype", "a"),
        ([*TORCH, "--dtype", "a", "--", "--dtype", "b"], COMPILES, "dtype", "a"),
    ],
)  # fmt: skip
def test_an_option_that_is_given_twice_counts_as_the_tool_takes_it_or_with_every_use(
    command: list[str], env: dict[str, str], name: str, value: str
) -> None:
    assert filled(command, env).values[name] == value


def test_two_commands_that_differ_in_any_use_of_an_option_share_no_key() -> None:
    commands = [
        [*HF, *(word for pattern in patterns for word in ("--include", pattern)), *more]
        for patterns in (["a"], ["b"], ["a", "b"], ["b", "a"], ["a b"], ['["--include=a", "--include=b"]'], [])
        for more in ([], ["a"], ["b"], ["a", "b"], ["--exclude", "a"], ["--revision", "a"])
    ]
    keys = {json.dumps(dict(filled(command).values), sort_keys=True) for command in commands}
    assert len(keys) == len(commands)
    long = [filled([*SERVE, "-O", "x" * 2000 + end]).values["build variant"] for end in "ab"]
    assert long[0] != long[1] and max(map(len, long)) < 1100


def test_what_is_not_known_is_left_out_and_said() -> None:
    found = filled(TT[:-2])
    assert found.unknown == ("architecture", "mesh", "dtype")
    assert not {"architecture", "mesh", "dtype"} & found.values.keys()
    assert found.sentence() == "key by the profile tt-inference-server: model=m; not known: architecture, mesh, dtype"


@pytest.mark.parametrize("command", [["./gen"], ["vllm", "bench"], ["python3", "compile.py"], []])
def test_an_unknown_command_fills_nothing(command: list[str]) -> None:
    job = CacheJob(name="c", command=command, container=None if command else {"image": "i"}, cache_dirs=["/c"])
    assert fill_key(job, InPlace(), ENV) is None
    assert known_key(job, InPlace(), ENV).values == {}


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """A virtual environment with vLLM, a model beside it, and the hub's cache with another."""
    for package in ("vllm-0.11.0", "torch-2.8.0+cpu", "vllm_extra-3", "torchvision-9"):
        (tmp_path / f"venv/lib/python3.12/site-packages/{package}.dist-info").mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python3").write_bytes(b"\x7fELF")
    (tmp_path / "venv/bin/vllm").write_text(f"#!{tmp_path}/venv/bin/python3\nimport vllm\n")
    config = {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    hub = tmp_path / "hf/hub/models--org--m"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs/main").write_text("abc123")
    (hub / "snapshots/abc123").mkdir(parents=True)
    (hub / "snapshots/abc123/config.json").write_text('{"dtype": "float16"}')
    return tmp_path


def test_upstreams_own_files_fill_what_the_command_leaves_to_the_model(installation: Path) -> None:
    env = {"PATH": f"{installation}/venv/bin", "HF_HOME": f"{installation}/hf"}
    local = filled(["vllm", "serve", f"{installation}/model"], env)
    assert (local.values["dtype"], local.values["quantization"]) == ("bfloat16", "fp8")
    assert dict(local.versions) == {"vllm": "0.11.0", "torch": "2.8.0+cpu"}
    assert local.unknown == ("architecture",)
    hub = [f"{installation}/venv/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/m"]
    assert filled(hub, env).versions["vllm"] == "0.11.0"
    asked = filled(["vllm", "serve", f"{installation}/model", "--dtype", "half"], env)
    assert asked.values["dtype"] == "half"


def test_a_model_that_was_changed_has_another_key(installation: Path) -> None:
    command = ["vllm", "serve", str(installation / "model")]
    before = filled(command)
    (installation / "model/config.json").write_text('{"torch_dtype": "bfloat16"}')
    assert filled(command).values["model config"] != before.values["model config"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"torch_dtype": {"a": 1}}', "[" * 100_000])
def test_a_config_that_is_none_fills_nothing(installation: Path, text: str) -> None:
    (installation / "model/config.json").write_text(text)
    assert filled(["vllm", "serve", str(installation / "model")]).values["dtype"] == "auto"


def test_versions_of_tenstorrents_tools_come_from_their_own_files(tmp_path: Path) -> None:
    (tmp_path / "metal").mkdir()
    (tmp_path / "metal/build").symlink_to("build_Release")
    (tmp_path / "VERSION").write_text("0.20.0\n")
    found = filled(["python3", "run.py", "--model", "m"], {"TT_METAL_HOME": f"{tmp_path}/metal"}, cwd=tmp_path)
    assert dict(found.versions) == {"tt-inference-server": "0.20.0"}
    assert found.values["build variant"] == "build_Release"


def test_in_a_container_only_the_jobs_own_environment_counts(installation: Path) -> None:
    env = {"PATH": f"{installation}/venv/bin", "VLLM_TARGET_DEVICE": "host"}
    found = filled(
        ["vllm", "serve", f"{installation}/model"], env, container={"image": "i"}, env={"VLLM_KV_CACHE_LAYOUT": "HND"},
        cache_dirs=["/c"],
    )  # fmt: skip
    assert (found.values["layout"], found.values["dtype"], dict(found.versions)) == ("HND", "auto", {})
    assert "architecture" in found.unknown


def test_a_secret_in_the_command_is_not_in_the_key() -> None:
    assert "hunter22" not in str(filled(["vllm", "serve", "https://me:hunter22@host/m"]))


@pytest.mark.parametrize("more", [[], ["--revision", "abc123"]])
def test_a_models_download_by_the_run_itself_changes_no_key(installation: Path, more: list[str]) -> None:
    before, after = (
        filled(["vllm", "serve", "org/m", *more], {"HF_HOME": f"{installation}/{hf}"}) for hf in ("no", "hf")
    )
    assert before == after
    assert ("revision" in after.unknown) is not bool(more)


def test_a_program_whose_interpreter_cannot_be_a_path_is_not_known(installation: Path) -> None:
    (installation / "venv/bin/vllm").write_bytes(b"#!/a\0b/bin/python3\n")
    assert filled(["vllm", "serve", "org/m"], {"PATH": f"{installation}/venv/bin"}).versions == {}


@pytest.mark.parametrize("error", [ChildProcessError, ValueError])
def test_a_helper_process_that_dies_stops_no_run(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def died(*_: object, timeout_s: float) -> None:
        raise error

    files = InPlace()
    monkeypatch.setattr(files, "run", died)
    assert known_key(CacheJob(name="c", command=["vllm", "serve", "m"]), files, ENV).values == {}


def test_files_that_do_not_answer_refuse_a_store_and_are_not_known_to_a_comparison(
    installation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, timeout_s: float) -> None:
        raise TimeoutError

    files = InPlace()
    monkeypatch.setattr(files, "run", never)
    job = CacheJob(name="c", command=["vllm", "serve", str(installation / "model")])
    with pytest.raises(InputError, match="key by the profile vllm-compile-cache is read from cannot be used"):
        fill_key(job, files, ENV)
    assert known_key(job, files, ENV).values == {}


def test_the_files_are_read_in_the_helper_process(installation: Path) -> None:
    aside = Aside.spawn([filled_key.__name__])
    try:
        job = CacheJob(name="c", command=["vllm", "serve", str(installation / "model")])
        found = fill_key(job, aside, {**ENV, "PATH": f"{installation}/venv/bin"})
    finally:
        aside.close()
    assert found is not None
    assert (found.values["quantization"], found.versions["vllm"]) == ("fp8", "0.11.0")


# In the store


def session(tmp_path: Path, command: list[str], **policy: object) -> PublishSession:
    (tmp_path / "store").mkdir(exist_ok=True)
    job = CacheJob(name="c", command=command)
    given = {"store": tmp_path / "store", "cache_dir_env": "VLLM_CACHE_ROOT", **policy}
    return PublishSession(job, PublishPolicy(**given))


def test_the_store_takes_the_filled_key_and_the_users_own_parts_win(
    installation: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", f"{installation}/venv/bin")
    command = ["vllm", "serve", str(installation / "model")]
    with caplog.at_level(logging.INFO):
        found = session(installation, command, cache_key={"dtype": "mine"}, tool_versions={"torch": "mine"}).recipe
    assert (found.cache_key["dtype"], found.cache_key["quantization"]) == ("mine", "fp8")
    assert dict(found.tool_versions) == {"vllm": "0.11.0", "torch": "mine"}
    assert "key by the profile vllm-compile-cache: " in caplog.text
    assert session(installation, command).recipe.key == session(installation, command).recipe.key
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    changed = session(installation, command, cache_key={"dtype": "mine"}, tool_versions={"torch": "mine"}).recipe
    assert changed.key != found.key


def test_an_unknown_commands_key_stays_as_it_was_given(tmp_path: Path) -> None:
    assert session(tmp_path, ["gen"], cache_key={"a": "b"}).recipe.cache_key == {"a": "b"}


# By the parameters of a profile


def test_a_profiles_parameters_fill_the_key_of_a_written_job_below_its_own() -> None:
    profile = {"name": "tt-inference-server", "model": "o/m", "device": "n300", "cache_root": "/x"}
    assert profile_key(profile) == {"model": "m", "mesh": "N300", "implementation": "tt_transformers"}
    assert profile_key(None) == {}
    written = {"command": ["x"], "profile": profile, "publish": {"store": "/s", "cache_key": {"mesh": "mine"}}}
    assert expand_profile(written)["publish"]["cache_key"] == {
        "model": "m", "mesh": "mine", "implementation": "tt_transformers",
    }  # fmt: skip
    assert "publish" not in expand_profile({"command": ["x"], "profile": profile})


def profiles(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["profiles", *argv])
    assert ended.value.code == 0
    return capsys.readouterr().out


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


def test_the_command_says_what_a_profile_fills(capsys: pytest.CaptureFixture[str]) -> None:
    shown = profiles(capsys, "tt-inference-server")
    assert "The key of a cache in a store is filled from:" in shown
    assert "--tt-device, --device, MESH_DEVICE" in shown
    told = json.loads(profiles(capsys, "vllm-compile-cache", "--json"))
    assert told["key"]["dtype"] == "--dtype, torch_dtype or dtype of config.json, else auto"
    assert told["packages"] == ["vllm", "torch"]
    assert "model=org/m" in profiles(capsys, "hf-download,home=/h,repo=org/m")


def test_no_profile_lists_a_part_twice() -> None:
    for kind in map(find_profile, known_profiles()):
        names = [source.name for source in kind.key_sources]
        assert len(names) == len(set(names)), kind


def test_a_profile_of_another_package_has_sources_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Profile):
        profile_name = "own"
        summary = "own"
        key_sources = (KeySource("tiles", ("--tiles",)),)

        def resolve(self):
            raise AssertionError

        @classmethod
        def knows(cls, line):
            return line.program == "owngen"

    registry = "prefect_cachewatch.config.profiles.registry"
    monkeypatch.setattr(f"{registry}.known_profiles", lambda: ["own"])
    monkeypatch.setattr(f"{registry}.find_profile", lambda name: Own)
    assert filled(["owngen", "--tiles", "8"]).values == {"tiles": "8"}
