"""`kubectl argosy import` makes a fleet of a Deployment that runs vLLM, and says what is left."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from argosy_operator.cli.kubectl.app import main
from argosy_operator.cli.kubectl.import_deployment import (
    parse_adapter,
    parse_flags,
    parse_length,
)

SHELL = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: mistral-7b, namespace: default}
spec:
  replicas: 2
  template:
    spec:
      volumes:
      - {name: cache, persistentVolumeClaim: {claimName: mistral-cache}}
      - {name: shm, emptyDir: {medium: Memory, sizeLimit: 2Gi}}
      containers:
      - name: server
        image: vllm/vllm-openai:v0.32.0
        command: ["/bin/sh", "-c"]
        args:
        - |
          echo starting && \\
          vllm serve mistralai/Mistral-7B-Instruct-v0.3 --revision main \\
            --trust-remote-code --enable-chunked-prefill \\
            --max-num-batched-tokens 1k --max-model-len=32K
        env:
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hub, key: token}}
        ports: [{containerPort: 8000}]
        resources:
          limits: {cpu: "10", memory: 20G, nvidia.com/gpu: "1"}
          requests: {cpu: "2", memory: 6G, nvidia.com/gpu: "1"}
        volumeMounts:
        - {mountPath: /root/.cache/huggingface, name: cache}
        - {mountPath: /dev/shm, name: shm}
        readinessProbe: {httpGet: {path: /health, port: 8000}}
"""
CLAIM = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  template:
    spec:
      nodeSelector: {gpu: h100}
      tolerations: [{key: gpu, operator: Exists}]
      volumes: [{name: weights, persistentVolumeClaim: {claimName: models}}]
      containers:
      - name: vllm
        image: registry.example.com/vllm-openai:v0.32.0
        args: [--model, /data/llama-70b, --served-model-name, llama, llama-70b, -tp, "4",
               --gpu-memory-utilization, "0.92", --port, "9000", --api-key, secret]
        env: [{name: VLLM_LOGGING_LEVEL, value: INFO}]
        resources: {limits: {amd.com/gpu: 4, rdma/ib: 1}}
        volumeMounts: [{name: weights, mountPath: /data, subPath: hub}]
      - {name: exporter, image: exporter:1}
"""
MODULE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: qwen}
spec:
  template:
    spec:
      containers:
      - name: a
        image: own:1
        command: [python3, -m, vllm.entrypoints.openai.api_server, --model=Qwen/Qwen3-8B]
"""
SCRIPT = r"""
apiVersion: apps/v1
kind: Deployment
metadata: {name: scripted}
spec:
  replicas: 0
  template:
    metadata: {labels: {app: old}}
    spec:
      hostNetwork: true
      containers:
      - name: proxy
        image: proxy:1
        volumeMounts: [{name: certs, mountPath: /certs}, {name: fast, mountPath: /dev/shm}]
      - name: engine-a
        image: own:1
        command: [/bin/bash, -l, -c]
        args:
        - |
          set -eu   # as always
          pip install -q plugin
          export VLLM_USE_V1=1
          VLLM_LOGGING_LEVEL=DEBUG exec vllm serve "$MODEL" --served-model-name $(NAMES) \
            --tensor-parallel-size ${TP:-4} --seed ${SEED} \
            --additional-config '{"a": "b c"}' --enforce-eager > /tmp/log 2>&1
          echo ended
        env:
        - {name: MODEL, value: org/model-7b}
        - {name: NAMES, value: small}
        - {name: HUGGING_FACE_HUB_TOKEN, value: of-the-hub}
        resources: {requests: {memory: 8Gi}, limits: {cpu: 8, memory: 32Gi}}
        volumeMounts: [{name: fast, mountPath: /dev/shm}, {name: weights, mountPath: /adapters}]
      volumes:
      - {name: certs, secret: {secretName: certs}}
      - {name: fast, emptyDir: {medium: Memory}}
      - {name: weights, emptyDir: {}}
"""


ADAPTERS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: base}
spec:
  template:
    spec:
      volumes:
      - {name: weights, persistentVolumeClaim: {claimName: models}}
      - {name: lora, persistentVolumeClaim: {claimName: adapters}}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.32.0
        args:
        - --model=/data/base
        - --enable-lora
        - --max-lora-rank=64
        - --lora-modules
        - sql=/data/lora/sql
        - '{"name": "chat", "path": "/lora/chat/v2", "base_model_name": "base"}'
        - hub=org/adapter
        volumeMounts: [{name: weights, mountPath: /data}, {name: lora, mountPath: /lora}]
"""


def imported(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """The spec that is printed, and the comments above it."""
    file = tmp_path / "deployment.yaml"
    file.write_text(text)
    name = yaml.safe_load(text)["metadata"]["name"]
    assert main(["import", f"deployment/{name}", "-f", str(file)]) == 0
    out = capsys.readouterr().out
    return yaml.safe_load(out)["spec"], "\n".join(x for x in out.split("\n") if x[:1] == "#")


def test_a_shell_line_becomes_a_fleet_that_fetches_from_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, notes = imported(SHELL, tmp_path, capsys)
    assert spec["model"]["uri"] == "hf://mistralai/Mistral-7B-Instruct-v0.3@main"
    assert spec["model"]["servedNames"] == ["mistralai/Mistral-7B-Instruct-v0.3"]
    token = spec["model"]["fetch"]["template"]["spec"]["containers"][0]["env"][0]
    assert token["valueFrom"]["secretKeyRef"]["name"] == "hub"
    assert spec["engine"]["maxNumBatchedTokens"] == 1000
    assert spec["engine"]["maxModelLen"] == 32768
    assert spec["engine"]["args"] == ["--trust-remote-code", "--enable-chunked-prefill"]
    role = spec["roles"]["colocated"]
    assert role["resources"] == {"gpu": 1, "cpu": "2", "memory": "20G"}
    assert role["replicas"] == {"min": 1, "max": 2}
    assert [v["name"] for v in role["template"]["spec"]["volumes"]] == ["shm"]
    for said in ("model.fetch.size", "slo", "probes", "volume cache", "a Service mistral-7b"):
        assert said in notes


def test_a_claim_and_what_the_pod_needs_are_carried_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, notes = imported(CLAIM, tmp_path, capsys)
    assert spec["model"] == {
        "uri": "pvc://models/hub/llama-70b",
        "servedNames": ["llama", "llama-70b"],
    }
    assert spec["engine"]["args"] == ["--gpu-memory-utilization=0.92"]
    assert spec["engine"]["env"] == [{"name": "VLLM_LOGGING_LEVEL", "value": "INFO"}]
    role = spec["roles"]["colocated"]
    assert role["parallelism"] == {"tensor": 4}
    assert role["resources"] == {"gpu": 4, "gpuResource": "amd.com/gpu"}
    pod = role["template"]["spec"]
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert [c["name"] for c in pod["containers"]] == ["engine", "exporter"]
    assert pod["containers"][0]["resources"]["limits"] == {"rdma/ib": "1"}
    assert "--api-key" in notes
    assert "secret" not in notes
    assert "--port" in notes


def test_adapters_on_claims_are_carried_over_and_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, notes = imported(ADAPTERS, tmp_path, capsys)
    assert spec["model"]["adapters"] == [
        {"name": "sql", "uri": "pvc://models/lora/sql"},
        {"name": "chat", "uri": "pvc://adapters/chat/v2"},
    ]
    assert spec["engine"]["args"] == ["--max-lora-rank=64"]
    assert "template" not in spec["roles"]["colocated"]
    assert "hub=org/adapter" in notes


@pytest.mark.parametrize(
    ("module", "read"),
    [
        ("a=/x=y", ("a", "/x=y")),
        ('{"name": "a", "path": "/x"}', ("a", "/x")),
        ('{"name": "a=b", "path": "/x", "base_model_name": "m"}', ("a=b", "/x")),
        ("[1]", ("", "")),
        ("a", ("", "")),
    ],
)
def test_adapters_are_read_in_both_forms_of_vllm(module: str, read: tuple[str, str]) -> None:
    assert parse_adapter(module) == read


def test_a_sidecar_with_vllm_in_its_name_is_not_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar = "containers:\n      - {name: b, image: own/vllm-exporter:1}"
    spec, _ = imported(MODULE.replace("containers:", sidecar), tmp_path, capsys)
    assert spec["model"]["uri"] == "hf://Qwen/Qwen3-8B"


def test_the_module_of_the_server_is_read_as_vllm_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, _ = imported(MODULE, tmp_path, capsys)
    assert spec["model"]["uri"] == "hf://Qwen/Qwen3-8B"
    assert spec["roles"]["colocated"]["resources"]["gpu"] == 0


def test_a_script_is_read_with_its_variables_and_what_else_it_runs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, notes = imported(SCRIPT, tmp_path, capsys)
    assert spec["model"]["uri"] == "hf://org/model-7b"
    assert spec["model"]["servedNames"] == ["small"]
    token = spec["model"]["fetch"]["template"]["spec"]["containers"][0]["env"]
    assert token == [{"name": "HF_TOKEN", "value": "of-the-hub"}]
    assert spec["engine"]["args"] == ['--additional-config={"a": "b c"}', "--enforce-eager"]
    env = {v["name"]: v["value"] for v in spec["engine"]["env"]}
    assert env["VLLM_USE_V1"] == "1"
    assert env["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert spec["roles"]["colocated"]["parallelism"] == {"tensor": 4}
    for said in ("pip install -q plugin", "--seed ${SEED}", "hostNetwork", "labels", "has 0"):
        assert said in notes


def test_memory_is_the_limit_and_each_container_finds_its_volumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, notes = imported(SCRIPT, tmp_path, capsys)
    role = spec["roles"]["colocated"]
    assert role["resources"] == {"gpu": 0, "cpu": "8", "memory": "32Gi"}
    assert "requests 8Gi" in notes
    pod = role["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"cpu": "8"}}
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert "weights" not in volumes, "which is the model's"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (MODULE, "other", "there is no Deployment other"),
        (MODULE.replace("vllm.entrypoints", "x"), "qwen", "runs `vllm serve`"),
        (MODULE.replace(", --model=Qwen/Qwen3-8B", ""), "qwen", "names no model"),
        ("a: [", "qwen", "no YAML"),
        (MODULE.replace("command: [", "args: '").replace("]", "'"), "qwen", "args is no list"),
        ("kind: Deployment\nmetadata: {name: qwen}\nspec: [1]", "qwen", "none that Kubernetes"),
        ("kind: Deployment\nmetadata: [qwen]", "qwen", "there is no Deployment qwen"),
    ],
)
def test_what_cannot_be_imported_is_a_sentence(
    text: str, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "d.yaml"
    file.write_text(text)
    assert main(["import", f"deployment/{name}", "-f", str(file)]) == 1
    assert said in capsys.readouterr().err


def test_a_deployment_is_found_in_a_folder_and_in_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"apiVersion": "v1", "kind": "List", "items": [*map(yaml.safe_load, (SHELL, CLAIM))]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(both))
    (tmp_path / "b.yaml").write_text(f"kind: Pod\n---{MODULE}")
    for name in ("mistral-7b", "llama", "qwen"):
        assert main(["import", f"deployment/{name}", "-f", str(tmp_path)]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["metadata"]["name"] == name
    assert main(["import", "deployment/none", "-f", str(tmp_path)]) == 1
    assert "it has mistral-7b, llama, qwen" in capsys.readouterr().err


def test_flags_are_read_in_every_spelling() -> None:
    words = ["m", "--a=1", "--b_c", "2", "--enforce-eager", "-tp", "4", "--x"]
    assert parse_flags(words) == [
        ("", ["m"]),
        ("--a", ["1"]),
        ("--b-c", ["2"]),
        ("--enforce-eager", []),
        ("--tensor-parallel-size", ["4"]),
        ("--x", []),
    ]


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("32k", 32000), ("32K", 32768), ("auto", None)]
)
def test_lengths_are_those_of_vllm(text: str, tokens: int | None) -> None:
    assert parse_length(text) == tokens
