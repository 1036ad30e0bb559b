"""Profiles: what follows from parameters, to the letter; what is not known or not valid; how one is added."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.generators.derive_tt import DATA

from prefect_cachewatch.cli.main import main
from prefect_cachewatch.config import CacheJob, MarkerFiles, RetryPolicy, StallPolicy, StopPolicy
from prefect_cachewatch.config.profiles import (
    Profile,
    find_profile,
    known_profiles,
    make_profile,
    read_profile,
)
from prefect_cachewatch.config.ready import ReadyOnExit
from prefect_cachewatch.errors import InputError
from prefect_cachewatch.fleet.jobsfile import read_jobs_file

DOCS = Path(__file__).parents[4] / "docs" / "profiles.md"
MODEL = "Llama-3.1-8B-Instruct"


def server(**values: object) -> Profile:
    return make_profile("tt-inference-server", {"model": MODEL, "device": "n300", **values})


# tt-inference-server


@pytest.mark.parametrize(
    ("device", "mesh"),
    [
        ("cpu", "CPU"), ("e150", "E150"), ("n150", "N150"), ("N150X4", "N150x4"), ("n300", "N300"), ("t3k", "T3K"),
        ("p100", "P100"), ("p150", "P150"), ("p150x4", "P150x4"), ("p300", "P300"), ("p300x2", "P300x2"),
        ("galaxy-t3k", "T3K"), ("blackhole_galaxy", "BH-Galaxy"), ("gpu", "GPU"), ("super_cluster", "Super-Cluster"),
    ],
)  # fmt: skip
def test_a_device_has_the_servers_own_name_in_the_path(device, mesh):
    found = server(device=device, cache_root="/root").settings
    assert str(found.cache_dirs[0]) == f"/root/tt_metal_cache/cache_{MODEL}/{mesh}"
    assert found.env["MESH_DEVICE"] == mesh


@pytest.mark.parametrize(
    ("place", "root", "tensor"),
    [
        ({"tt_cache_path": "/c/tensors"}, None, "/c/tensors"),
        ({"cache_root": "/home/container_app_user/cache_root"}, "/home/container_app_user/cache_root",
         f"/home/container_app_user/cache_root/tt_metal_cache/cache_{MODEL}/N300"),
        ({"host_volume": "/mnt/tt", "version": "0.9.0"}, f"/mnt/tt/volume_id_tt_transformers-{MODEL}-v0.9.0",
         f"/mnt/tt/volume_id_tt_transformers-{MODEL}-v0.9.0/tt_metal_cache/cache_{MODEL}/N300"),
        ({"host_volume": "/mnt/tt", "version": "v1.2", "impl": "gpt_oss"}, f"/mnt/tt/volume_id_gpt_oss-{MODEL}-v1.2",
         f"/mnt/tt/volume_id_gpt_oss-{MODEL}-v1.2/tt_metal_cache/cache_{MODEL}/N300"),
        ({"docker_volume": "auto"}, f"/var/lib/docker/volumes/volume_id_tt_transformers-{MODEL}/_data",
         f"/var/lib/docker/volumes/volume_id_tt_transformers-{MODEL}/_data/tt_metal_cache/cache_{MODEL}/N300"),
        ({"docker_volume": "caches", "docker_root": "/data/docker"}, "/data/docker/volumes/caches/_data",
         f"/data/docker/volumes/caches/_data/tt_metal_cache/cache_{MODEL}/N300"),
    ],
)  # fmt: skip
def test_the_directories_are_where_the_server_puts_them(place, root, tensor):
    settings = server(**place).settings
    weights = [f"{root}/weights/{MODEL}"] if root else []
    if "docker_volume" in place:
        assert (settings.env, len(settings.hints)) == ({}, 1)
        assert [str(path) for path in settings.cache_dirs] == [tensor, *weights]
        return
    assert [str(path) for path in settings.cache_dirs] == [tensor, f"{tensor}-kernels", *weights]
    expected = {"MESH_DEVICE": "N300", "TT_CACHE_PATH": tensor, "TT_METAL_CACHE": f"{tensor}-kernels"}
    expected["TT_SERVER_BOOT_ATTEMPTS"] = "1"
    assert settings.env == expected | ({"CACHE_ROOT": root} if root else {})


def test_the_kernel_cache_may_be_elsewhere_and_a_hugging_face_name_is_the_models():
    found = server(model=f"meta-llama/{MODEL}", docker_volume="auto", kernel_cache="/mnt/kernels", weights=False)
    found = found.settings
    assert [str(path) for path in found.cache_dirs][1:] == ["/mnt/kernels"]
    assert f"/cache_{MODEL}/" in str(found.cache_dirs[0])


def test_its_windows_markers_and_readiness_fit_a_first_start():
    profile = server(tt_cache_path="/c", port=7000)
    job, stall = profile.job(["run"]), profile.stall()
    assert (stall.first_write_within_s, stall.stall_after_s, stall.warmup_within_s) == (1800, 900, 2700)
    assert (job.ready.kind, job.ready.url, job.ready.then) == ("http", "http://127.0.0.1:7000/health", "leave_running")
    assert job.markers == MarkerFiles(
        started=Path("TT_METAL_CACHE_FIRST_RUN_STARTED"), completed=Path("TT_METAL_CACHE_COMPLETED")
    )
    assert {"TT_METAL_CACHE_FIRST_RUN_STARTED", "TT_METAL_CACHE_COMPLETED"} < set(job.ignore)
    assert (job.name, job.command) == (f"{MODEL}-n300", ["run"])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"device": "n301", "tt_cache_path": "/c"},
         "profile tt-inference-server: device: device 'n301' is not known: did you mean n300?"),
        ({}, "profile tt-inference-server: give exactly one of tt_cache_path, cache_root, host_volume, docker_volume, or "
             "checkout alone: none is given"),
        ({"host_volume": "/mnt"},
         "profile tt-inference-server: host_volume needs checkout or specs: the server's directory in it is "
         "volume_id_<impl>-<model>-v<version>, by the model's specification"),
        ({"device": "galaxy", "cache_root": "/c"},
         "profile tt-inference-server: galaxy needs checkout or specs: for some models the directory has the name of a part of it"),
        ({"tt_cache_path": "/c", "modle": "x"},
         "profile tt-inference-server has no parameter 'modle': did you mean model?"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(values, sentence):
    with pytest.raises(InputError) as caught:
        make_profile("tt-inference-server", {"model": MODEL, "device": "n300", **values})
    assert caught.value.message == sentence


# The small ones

REQUIRED = {
    "tt-inference-server": {"model": "m", "device": "n150", "tt_cache_path": "/c"},
    "torch-compile": {"cache_dir": "/c"},
    "openvino": {"cache_dir": "/c"},
    "vllm-compile-cache": {"cache_root": "/c"},
    "sglang": {"cache_root": "/c"},
    "trtllm-build": {"checkpoint_dir": "/k", "output_dir": "/c"},
    "hf-download": {"home": "/c"},
    "tt-serve": {"model": "ns/m", "home": "/c"},
}


@pytest.mark.parametrize(
    ("name", "more", "dirs", "env", "command"),
    [
        ("torch-compile", {}, ["/c"], {"TORCHINDUCTOR_CACHE_DIR": "/c", "TRITON_CACHE_DIR": "/c/triton",
                                       "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}, []),
        ("torch-compile", {"package_dir": "/p"}, ["/c", "/p"], None, []),
        ("openvino", {}, ["/c"], {}, []),
        ("vllm-compile-cache", {}, ["/c/torch_compile_cache"], {"VLLM_CACHE_ROOT": "/c"}, []),
        ("trtllm-build", {"workers": "4"}, ["/c"], {},
         ["trtllm-build", "--checkpoint_dir", "/k", "--output_dir", "/c", "--workers", "4"]),
        ("trtllm-build", {"timing_cache": "/t.cache"}, ["/c"], {},
         ["trtllm-build", "--checkpoint_dir", "/k", "--output_dir", "/c", "--workers", "1", "--input_timing_cache",
          "/t.cache", "--output_timing_cache", "/t.cache"]),
        ("hf-download", {}, ["/c/hub", "/c/xet"],
         {"HF_HOME": "/c", "HF_HUB_CACHE": "/c/hub", "HF_XET_CACHE": "/c/xet"}, []),
        ("hf-download", {"repo": "org/model", "revision": "abc", "local_dir": "/l"}, ["/l", "/c/xet"], None,
         ["hf", "download", "org/model", "--revision", "abc", "--local-dir", "/l"]),
        ("tt-serve", {"tool": "tt-model", "volume": "/v", "port": "9"}, ["/c/hub", "/c/xet", "/v"],
         {"HF_HOME": "/c", "TT_MODEL_PROGRESS": "ndjson", "TT_MODEL_NO_PIN": "1", "PYTHONUNBUFFERED": "1"},
         ["tt-model", "ns/m", "--port", "9"]),
    ],
)  # fmt: skip
def test_what_follows_from_a_small_profile(name, more, dirs, env, command):
    settings = make_profile(name, REQUIRED[name] | more).settings
    assert [str(path) for path in settings.cache_dirs] == dirs
    # What a shell runs is tried by tests/processes/test_profile_exec.py.
    shell = {"hf-download": 4, "tt-serve": 3}.get(name, 0)
    assert list(settings.command)[shell:] == command
    assert env is None or settings.env == env


@pytest.mark.parametrize("name", known_profiles())
def test_each_profile_is_named_as_the_table_says_and_makes_a_job(name):
    assert find_profile(name).summary.endswith(".")
    profile = make_profile(name, REQUIRED[name])
    assert profile.job(["x"]).command == ["x"]
    assert profile.stall(stall_after_s=77).stall_after_s == 77
    assert f"| `{name}` |" in DOCS.read_text()
    if not profile.settings.command:
        with pytest.raises(ValueError, match=f"the profile {name} knows no command: give the generator's argv"):
            profile.job()


# The key


def test_a_profiles_parameters_fill_the_key_of_a_written_job_below_its_own(tmp_path):
    chosen = {"name": "tt-inference-server", "model": "o/m", "device": "n300", "cache_root": "/x"}
    assert read_profile(chosen).key == {"model": "m", "mesh": "N300", "implementation": "tt_transformers"}
    job = {
        "name": "j",
        "command": ["x", "{cache_dir}"],
        "cache_dirs": ["{cache_dir}"],
        "profile": chosen,
        "ready": {"kind": "exit"},
    }
    job["publish"] = {"store": "/s", "cache_key": {"mesh": "mine"}}
    path = tmp_path / "jobs.yaml"
    path.write_text(json.dumps({"version": 1, "jobs": [job]}))
    (found,) = read_jobs_file(path).jobs
    assert found.publish.cache_key == {"model": "m", "mesh": "mine", "implementation": "tt_transformers"}


def test_a_specification_says_version_implementation_and_sub_device():
    specs = DATA / "release_model_spec.json"
    entry = next(
        each for each in json.loads((DATA / "expected.json").read_text())["places"] if each["device"] == "galaxy"
    )
    asked = {name: entry[name] for name in ("model", "device", "impl")}
    key = read_profile({"name": "tt-inference-server", **asked, "specs": str(specs), "host_volume": "/v"}).key
    assert key["model"] == entry["model"].rpartition("/")[2]
    assert key["mesh"] == "TG"
    assert f"volume_id_{key['implementation']}-{key['model']}-v{key['version'].removeprefix('v')}" in entry["root"]


# What a job says itself goes before its profile


def test_what_the_job_and_the_policy_say_themselves_stays():
    job = CacheJob(name="j", command=["x"], cache_dirs=["/own"], env={"HF_HOME": "/elsewhere"}, ready=ReadyOnExit())
    chosen = {"name": "tt-inference-server", "model": "m", "device": "n150", "tt_cache_path": "/c"}
    known = read_profile(chosen)
    found, stall = known.under_job(job), known.under(StallPolicy(stall_after_s=77))
    assert [known.under(stop).grace_s for stop in (StopPolicy(), StopPolicy(grace_s=3))] == [60, 3]
    assert known.under(RetryPolicy()).before_retry is None
    resets, own = read_profile({**chosen, "reset": "0"}), ["reset-mine"]
    assert resets.under(RetryPolicy()).before_retry == ["tt-smi", "-r", "0"]
    assert resets.under(RetryPolicy(before_retry=own)).before_retry == own
    assert (found.cache_dirs, found.ready.kind, found.name) == ([Path("/own")], "exit", "j")
    assert (found.env["HF_HOME"], found.env["TT_CACHE_PATH"]) == ("/elsewhere", "/c")
    assert (stall.stall_after_s, stall.first_write_within_s) == (77, 1800)
    found = known.under_job(CacheJob(name="j", command=["x"]))
    assert [str(path) for path in found.cache_dirs] == ["/c", "/c-kernels"]
    assert found.ready.kind == "http"


@pytest.mark.parametrize("wrong", ["openvino", {"cache_dir": "/c"}, {"name": 3}, None])
def test_what_is_no_mapping_with_a_name_is_no_profile(wrong):
    with pytest.raises(InputError, match="profile is no mapping with a name: write profile: "):
        read_profile(wrong)


JOBS = """version: 1
defaults:
  retry: {attempts: 2}
  profile:
    name: tt-inference-server
    host_volume: /mnt/tt
    version: "0.9.0"
  stall:
    warmup_within_s: 3000
jobs:
  - name: llama
    command: [run]
    profile: {model: Llama, device: n300}
  - name: qwen
    command: [run]
    stall: {stall_after_s: 600}
    profile:
      model: Qwen
      device: t3k
  - command: [compile]
    profile: {name: torch-compile, cache_dir: /mnt/inductor}
"""


def test_a_jobs_file_knows_profiles_also_as_defaults(tmp_path):
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS)
    llama, qwen, torch = read_jobs_file(path).jobs
    root = "/mnt/tt/volume_id_tt_transformers-Llama-v0.9.0"
    assert str(llama.cache_dirs[0]) == f"{root}/tt_metal_cache/cache_Llama/N300"
    assert (llama.stall.warmup_within_s, llama.stall.stall_after_s, llama.ready.kind) == (3000, 900, "http")
    assert llama.parameters()["stall"]["first_write_within_s"] == 1800
    assert llama.parameters()["job"]["env"]["MESH_DEVICE"] == "N300"
    assert (qwen.stall.stall_after_s, qwen.env["MESH_DEVICE"], qwen.retry.attempts) == (600, "T3K", 2)
    assert (torch.name, torch.ready.kind, [str(path) for path in torch.cache_dirs]) == (
        "inductor", "exit", ["/mnt/inductor"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("device: n300", "device: n301",
         "jobs.yaml: jobs[0]: profile tt-inference-server: device: device 'n301' is not known: did you mean n300?"),
        ("name: torch-compile", "name: torch-compiel",
         "jobs.yaml: jobs[2]: there is no profile 'torch-compiel': did you mean torch-compile? (see cachewatch profiles)"),
    ],
)  # fmt: skip
def test_a_jobs_file_with_a_bad_profile_is_answered_with_the_job(tmp_path, before, after, sentence):
    path = tmp_path / "jobs.yaml"
    path.write_text(JOBS.replace(before, after))
    with pytest.raises(InputError) as caught:
        read_jobs_file(path)
    assert caught.value.message.endswith(sentence)


# The registry


EXAMPLE = re.search(r"```toml\n(summary = .*?)```", DOCS.read_text(), re.DOTALL)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEWATCH_PROFILES", str(tmp_path))
    return tmp_path


def test_the_documented_example_of_a_site_s_profile_is_one_of_the_known(site, capsys):
    assert EXAMPLE is not None
    (site / "converted-checkpoint.toml").write_text(EXAMPLE[1])
    (site / "README").write_text("no profile")
    assert "converted-checkpoint" in known_profiles()
    found = make_profile("converted-checkpoint", {"target": "/mnt/layers"})
    assert (found.job().command, found.job().env) == (["convert-checkpoint"], {"CONVERT_TO": "/mnt/layers"})
    assert (found.job().name, found.job().cache_dirs) == ("layers", [Path("/mnt/layers")])
    assert (found.stall().stall_after_s, len(found.job().progress_log)) == (240, 1)
    assert "converted-checkpoint  Our converter: one file a layer" in run(capsys)[1]


def test_a_site_s_file_takes_the_place_of_the_built_in_one_of_its_name(site):
    (site / "openvino.toml").write_text('summary = "Ours."\ncache_dirs = ["/ours"]\n')
    assert make_profile("openvino", {}).settings.cache_dirs == (Path("/ours"),)
    assert known_profiles().count("openvino") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cache_dirs = [", "profile {}/ours.toml is not TOML: Invalid value (at end of document)"),
        ('cache_dirs = ["/c"]', "profile {}/ours.toml: summary is missing: What it is for, in a sentence"),
        ('summary = "x"\ncache_dir = ["/c"]\ncache_dirs = []',
         "profile {}/ours.toml: cache_dir is not known: did you mean cache_dirs?"),
        ('summary = "x"\ncache_dirs = ["{traget}"]\n[parameters.target]\ntype = "path"\ndescription = "x"',
         "profile {}/ours.toml: there is no parameter 'traget': did you mean target?"),
        ('summary = "x"\ncache_dirs = ["c"]',
         "profile ours: cache_dirs: cache directory 'c' is not an absolute path: write it from / on"),
        ('summary = "x"\ncache_dirs = ["/c"]\nstall = {stall_after = 3}',
         "profile {}/ours.toml: stall has no field 'stall_after': did you mean stall_after_s?"),
        ('summary = "x"\ncache_dirs = ["/c"]\nstall = {stall_after_s = "soon"}', "profile ours: stall_after_s: "),
        ('summary = "x"\ncache_dirs = ["/c"]\nprogress_log = ["("]', "profile ours: progress_log: "),
    ],
)  # fmt: skip
def test_a_site_s_file_that_is_not_valid_is_one_sentence_and_breaks_no_other(site, text, sentence):
    (site / "ours.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        make_profile("ours", {})
    assert caught.value.message.startswith(sentence.format(site))
    assert make_profile("openvino", {"cache_dir": "/c"}).settings.name == "c"


def test_a_directory_of_profiles_that_cannot_be_read_is_one_sentence(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CACHEWATCH_PROFILES", str(tmp_path / "none"))
    status, _, said = run(capsys)
    assert (status, said) == (
        125,
        f"cachewatch: CACHEWATCH_PROFILES: {tmp_path}/none cannot be read (No such file or directory): name a directory of profiles\n",
    )


# The command


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["profiles", *argv])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_command_lists_shows_and_resolves(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    assert all(line == "" or len(line) < 80 for line in out.splitlines())
    assert [line.split()[0] for line in out.splitlines() if line[:1].isalnum()][: len(REQUIRED)] == sorted(REQUIRED)
    status, out, _ = run(capsys, "tt-inference-server")
    assert "  device          Device: cpu, e150" in out
    assert all(len(line) < 80 for line in out.splitlines()[1:])
    status, out, _ = run(capsys, "openvino,cache_dir=/mnt/ov")
    block = re.search(r"\$ cachewatch profiles openvino,cache_dir=/mnt/ov\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert block is not None and out == block[1]
    status, out, _ = run(capsys, "hf-download,home=/c", "--json")
    assert json.loads(out)["cache_dirs"] == ["/c/hub", "/c/xet"]
    assert json.loads(run(capsys, "openvino", "--json")[1])["parameters"]["required"] == ["cache_dir"]
    assert set(json.loads(run(capsys, "--json")[1])) == set(known_profiles())


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["vlm"], "there is no profile 'vlm': did you mean vllm-compile-cache? (see cachewatch profiles)"),
        (["openvino,/c"], "'/c' is no parameter of a profile: write it like model=Llama-3.1-8B-Instruct"),
        (["openvino,cache-dir=/c,cache_dir=/d"],
         "the profile's parameter cache_dir is given twice: leave one out"),
    ],
)  # fmt: skip
def test_bad_input_of_the_command_is_one_sentence(capsys, argv, sentence):
    assert run(capsys, *argv) == (125, "", f"cachewatch: {sentence}\n")
