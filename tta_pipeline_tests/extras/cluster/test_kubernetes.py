"""The manifests in cluster/kubernetes, against the models of the Kubernetes API; no cluster is needed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("dagster_k8s", reason="expected the API models: pip install dagster-k8s")
from dagster_k8s.job import DagsterK8sJobConfig, UserDefinedDagsterK8sConfig, construct_dagster_k8s_job
from dagster_k8s.models import k8s_model_from_dict, k8s_snake_case_dict
from kubernetes import client

pytestmark = pytest.mark.cluster
FOLDER = Path(__file__).parents[3] / "cluster" / "kubernetes"


def read(name: str) -> Any:
    """Return the content of a file."""
    return yaml.safe_load((FOLDER / name).read_text())


def parsed(kind: type, content: dict[str, Any]) -> Any:
    """Return *content* as an object of the API, which refuses unknown fields."""
    return k8s_model_from_dict(kind, k8s_snake_case_dict(kind, content))


def test_the_volume_claim_is_one():
    """It has no field that the API lacks, and many nodes may write it."""
    claim = parsed(client.V1PersistentVolumeClaim, read("data.yaml"))

    assert ["ReadWriteMany"] == claim.spec.access_modes
    with pytest.raises(Exception, match="specs"):
        parsed(client.V1PersistentVolumeClaim, {**read("data.yaml"), "specs": {}})


def test_each_run_is_a_pod_with_a_gpu_and_the_data_root():
    """As `K8sRunLauncher` makes it from the values: image, volume, one GPU."""
    values = read("values.yaml")
    (code,) = values["dagster-user-deployments"]["deployments"]
    for entry in code["env"]:
        parsed(client.V1EnvVar, entry)
    container = values["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]["containerConfig"]
    config = UserDefinedDagsterK8sConfig.from_dict({
        "container_config": {**container, "env": code["env"], "volume_mounts": code["volumeMounts"]},
        "pod_spec_config": {"volumes": code["volumes"]},
    })  # fmt: skip
    image = f"{code['image']['repository']}:{code['image']['tag']}"

    job = construct_dagster_k8s_job(
        DagsterK8sJobConfig(job_image=image, dagster_home="/opt/dagster"), ["dagster", "api", "execute_run"], "run",
        user_defined_k8s_config=config,
    )  # fmt: skip
    pod = client.ApiClient().sanitize_for_serialization(job)["spec"]["template"]["spec"]

    assert "1" == str(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert {"name": "TTA_DATA_ROOT", "value": "/data"} in pod["containers"][0]["env"]
    assert read("data.yaml")["metadata"]["name"] == pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
