"""The templates against what they are for: Prefect's workers, Docker's API client, the Kubernetes API."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from typing import Any
from uuid import UUID

import pytest
import yaml
from tests.deployments.conftest import DEPLOYMENTS, ROOT

pytestmark = pytest.mark.deployments
POOLS = {"process": "process", "docker": "docker", "kubernetes": "kubernetes"}
KUBERNETES = "1.34"


def template(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOYMENTS / "pools" / f"{name}.json").read_text())
    return loaded


def worker_class(kind: str) -> Any:
    if kind == "docker":
        from prefect_docker.worker import DockerWorker

        return DockerWorker
    if kind == "kubernetes":
        from prefect_kubernetes.worker import KubernetesWorker

        return KubernetesWorker
    from prefect.workers.process import ProcessWorker

    return ProcessWorker


def configured(name: str, **job_variables: Any) -> Any:
    """The job configuration that a worker of the pool makes of the template and a deployment's variables."""
    from prefect.client.orchestration import PrefectClient
    from prefect.client.schemas.objects import FlowRun

    nobody = PrefectClient("http://127.0.0.1:9/api")  # asked only for blocks and variables, of which there are none
    kind = worker_class(POOLS[name]).job_configuration
    made = asyncio.run(kind.from_template_and_values(template(name), job_variables, client=nobody))
    made.prepare_for_flow_run(FlowRun(id=UUID(int=1), name="llama", flow_id=UUID(int=2)))
    return made


def job_manifest(name: str, **job_variables: Any) -> dict[str, Any]:
    manifest: dict[str, Any] = copy.deepcopy(configured(name, **job_variables).job_manifest)
    # Prefect's worker demands these two in the pod's spec, where the API knows no such fields and drops them.
    pod = manifest["spec"]["template"]["spec"]
    assert (pod.pop("completions"), pod.pop("parallelism")) == (1, 1)
    return manifest


def check(manifest: dict[str, Any]) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", POOLS)
def test_a_template_offers_what_the_worker_takes_and_every_placeholder_is_a_variable(name: str) -> None:
    ours, theirs = template(name), worker_class(POOLS[name]).get_default_base_job_template()
    assert set(ours["job_configuration"]) == set(theirs["job_configuration"])
    placeholders = set(re.findall(r"\{\{ ([a-z_]+) \}\}", json.dumps(ours["job_configuration"])))
    assert placeholders == set(ours["variables"]["properties"])
    for variable, schema in ours["variables"]["properties"].items():
        assert schema["description"], variable
        if variable in theirs["variables"]["properties"]:
            assert schema.get("type") == theirs["variables"]["properties"][variable].get("type"), variable


@pytest.mark.parametrize("name", POOLS)
def test_the_defaults_and_examples_of_a_template_fit_its_own_schema(name: str) -> None:
    import jsonschema

    variables = template(name)["variables"]
    jsonschema.Draft202012Validator.check_schema(variables)
    for variable, schema in variables["properties"].items():
        validator = jsonschema.Draft202012Validator(
            {**schema, **{key: variables[key] for key in ("$defs", "definitions") if key in variables}}
        )
        for value in [schema[key] for key in ("default",) if key in schema] + schema.get("examples", []):
            assert list(validator.iter_errors(value)) == [], variable


def test_a_docker_job_is_bounded_and_mounts_the_cache() -> None:
    from docker.models.containers import _create_container_args

    made = configured(
        "docker",
        devices=["/dev/tenstorrent:/dev/tenstorrent:rw"],
        groups=["995"],
        env={"TT_CACHE_PATH": "/mnt/caches/x"},
    )
    assert made.privileged is False
    assert made.volumes == ["/srv/caches:/mnt/caches:rw", "cachewatch-state:/var/lib/cachewatch:rw"]
    assert made.env["TT_CACHE_PATH"] == "/mnt/caches/x"
    # The docker SDK refuses keywords that it does not know, and puts each where the API has it.
    settings = {"image": made.image, "command": made.command, "volumes": made.volumes, "version": "1.44"}
    host = _create_container_args({**settings, **made.container_create_kwargs})["host_config"]
    assert (host["ShmSize"], host["PidsLimit"], host["Init"]) == (8 << 30, 4096, True)
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])
    assert host["GroupAdd"] == ["995"]
    assert host["Devices"] == [
        {"PathOnHost": "/dev/tenstorrent", "PathInContainer": "/dev/tenstorrent", "CgroupPermissions": "rw"}
    ]
    assert not host.get("Privileged") and "PidMode" not in host
    assert made.container_create_kwargs["user"] == "10001:10001"


@pytest.mark.parametrize(
    "job_variables",
    [
        {},
        {"limits": {"memory": "64Gi", "nvidia.com/gpu": "1", "hugepages-1Gi": "4Gi"}, "env": {"A": "b"}},
        {
            "device_claims": [{"name": "device", "resourceClaimTemplateName": "tenstorrent"}],
            "container_claims": [{"name": "device"}],
            "node_selector": {"tenstorrent.com/card": "n150"},
            "tolerations": [{"key": "tenstorrent.com/card", "operator": "Exists", "effect": "NoSchedule"}],
            "termination_grace_seconds": 600,
        },
    ],
    ids=["defaults", "device-plugin", "device-claims"],
)
def test_the_rendered_job_is_one_that_the_kubernetes_api_takes(job_variables: dict[str, Any]) -> None:
    check(job_manifest("kubernetes", **job_variables))


def test_the_pods_of_a_kubernetes_job_are_isolated_and_have_time_to_stop() -> None:
    pod = job_manifest("kubernetes", limits={"memory": "64Gi", "nvidia.com/gpu": "1"})["spec"]["template"]["spec"]
    assert restricted(pod) == []
    assert pod["volumes"][0] == {"name": "cache", "persistentVolumeClaim": {"claimName": "caches"}}
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": "1"}
    from prefect_cachewatch.config import StopPolicy

    assert pod["terminationGracePeriodSeconds"] >= StopPolicy().grace_s + 60


def restricted(pod: dict[str, Any]) -> list[str]:
    """What in a pod's spec the Pod Security Standard `restricted` refuses."""
    found = [f"{key} is on" for key in ("hostPID", "hostIPC", "hostNetwork") if pod.get(key)]
    context = pod.get("securityContext", {})
    if not context.get("runAsNonRoot") or context.get("runAsUser", 0) == 0:
        found.append("may run as root")
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        found.append("no seccomp profile")
    allowed = {
        "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
    }  # fmt: skip
    for volume in pod.get("volumes", []):
        found += [f"volume {volume['name']} is of kind {kind}" for kind in set(volume) - allowed - {"name"}]
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container.get("securityContext", {})
        if own.get("privileged") or own.get("allowPrivilegeEscalation", True):
            found.append(f"{container['name']} may gain privileges")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own.get("capabilities", {}).get("add"):
            found.append(f"{container['name']} has capabilities")
    return found


@pytest.mark.parametrize("name", ["Dockerfile", "generator.Dockerfile"])
def test_an_image_s_last_stage_is_without_root(name: str) -> None:
    text = (DEPLOYMENTS / "docker" / name).read_text()
    users = re.findall(r"^USER (.*)$", text, re.M)
    assert users[-1] == "10001:10001"
    for folder in re.findall(r"^COPY (src|flows|tasks|deployments) ", text, re.M):
        assert (ROOT / folder).is_dir() and f"!{folder}" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_zombie_window_is_more_than_three_heartbeats() -> None:
    from prefect.settings import get_current_settings

    within = yaml.safe_load((DEPLOYMENTS / "automations" / "zombies.yaml").read_text())["trigger"]["within"]
    assert within > 3 * (get_current_settings().flows.heartbeat_frequency or 0) > 0
