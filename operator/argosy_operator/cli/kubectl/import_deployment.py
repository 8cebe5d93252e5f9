"""`kubectl argosy import deployment/NAME`: a ServingDeployment from a Deployment that runs vLLM.

The fleet is printed, never written: its first lines, as comments, say what could not be carried
over and what to decide.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from argosy_operator.api.v1alpha1 import GROUP, VERSION
from argosy_operator.cli.kubectl.command import (
    CommandError,
    Context,
    Exit,
    Kubeconfig,
    Namespace,
    as_yaml,
)
from argosy_operator.cli.kubectl.lint import documents, findings, read_documents
from argosy_operator.core.snapshot.template import OWN_VOLUMES

_SERVER = "vllm.entrypoints.openai.api_server"
_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
"""vLLM's suffixes of lengths: 32k is 32,000, and 32K is 32,768."""
_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
}
_SIZES = {
    "--max-model-len": "maxModelLen",
    "--max-num-seqs": "maxNumSeqs",
    "--max-num-batched-tokens": "maxNumBatchedTokens",
}
_SWITCHES = frozenset(
    (
        *("--enforce-eager", "--trust-remote-code", "--enable-prefix-caching"),
        *("--enable-chunked-prefill", "--enable-auto-tool-choice", "--enable-lora"),
        *("--disable-log-requests", "--disable-log-stats", "--enable-expert-parallel"),
        *("--enable-sleep-mode", "--enable-prompt-tokens-details", "--async-scheduling"),
        *("--enable-request-id-headers", "--disable-custom-all-reduce", "--language-model-only"),
    )
)
"""Flags after which a word is not their value. Others that take none are found by what follows."""
_LEFT_OUT = {
    "--host": "engines listen on all addresses of their pod",
    "--port": "engines listen on 8000, and clients reach the fleet's Service on port 80",
    "--api-key": "the pod's uid is the engine's key; put who may call in front of the gateway",
    "--kv-transfer-config": "Argosy writes it for prefill and decode roles, and takes no other",
    "--uds": "the gateway reaches engines over TCP",
    "--root-path": "clients' paths are those of the gateway",
    "--ssl-keyfile": "the gateway ends TLS for clients",
    "--ssl-certfile": "the gateway ends TLS for clients",
    "--disable-log-stats": "the law reads vLLM's metrics",
    "--shutdown-timeout": "it follows from spec.drain.timeout",
}
_ADAPTERS = "--lora-modules"
_DTYPES = ("auto", "float32", "bfloat16", "float16")
_OF_POD = (
    *("nodeSelector", "tolerations", "affinity", "imagePullSecrets", "runtimeClassName"),
    *("priorityClassName", "schedulerName", "serviceAccountName", "securityContext"),
    *("topologySpreadConstraints", "resourceClaims", "hostIPC", "dnsPolicy", "dnsConfig"),
)
"""Fields of the pod that the role's template takes as they are."""
_OF_CONTAINER = ("envFrom", "securityContext", "imagePullPolicy", "workingDir")
_READ_OF_POD = (
    *(*_OF_POD, "containers", "initContainers", "volumes", "restartPolicy", "serviceAccount"),
    "terminationGracePeriodSeconds",
)
_SHM = "/dev/shm"  # noqa: S108 # a mount of the pod
_SHELLS = ("sh", "bash", "ash", "dash")
_SHELL_LINE = re.compile(r"-[a-z]*c")
_OF_KUBELET = re.compile(r"\$\(([A-Za-z_]\w*)\)")
_OF_SHELL = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_SET = re.compile(r"(?:^|[\s;&])([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|[^\s;&|]*)")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#[^\n]*", re.MULTILINE)
_REDIRECTION = re.compile(r"(?<!\S)(?:\d*>>?|\d*<|&>)(?:&\d|\s*[^\s;&|]+)")
_OWN_ENV = ("POD_NAME", "POD_UID", "POD_IP", "POD_NAMESPACE")
_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_OF_HANDOVERS = ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT")
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
_READ_OF_CONTAINER = (
    *(*_OF_CONTAINER, *_PROBES, "name", "image", "command", "args", "env", "ports", "resources"),
    *("volumeMounts", "terminationMessagePath", "terminationMessagePolicy"),
)


@dataclass(slots=True)
class _Fleet:
    """What was read so far."""

    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What was not carried over, and what is left to decide."""


def import_(
    deployment: Annotated[
        str, typer.Argument(metavar="deployment/NAME", help="The Deployment that runs vLLM.")
    ],
    file: Annotated[
        str | None,
        typer.Option(
            "-f", "--filename", help="Read it from a manifest or a folder; - is standard input."
        ),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> int:
    """Print a ServingDeployment for a Deployment that runs vLLM. Nothing is written."""
    kind, _, name = deployment.rpartition("/")
    if not name or kind.lower() not in (
        "",
        "deployment",
        "deployments",
        "deploy",
        "deployment.apps",
    ):
        raise CommandError(f"{deployment} is no Deployment: write deployment/NAME", Exit.USAGE)
    found = _read(file, name) if file is not None else _ask(name, namespace, context, kubeconfig)
    try:
        fleet = convert(found)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CommandError(
            f"Deployment {name} is none that Kubernetes takes ({error}): kubectl apply "
            "--dry-run=server names the field"
        ) from error
    text = as_manifest(fleet.notes, manifest(found, fleet.spec))
    print(text)
    errors = [one for d in documents(text, "-") for one in findings(d) if one.level == "error"]
    for one in errors:
        print(one.text(), file=sys.stderr)
    return Exit.FAILED if errors else Exit.OK


def _read(file: str, name: str) -> dict[str, Any]:
    """Return the Deployment of that name in a file or folder of manifests. Raises CommandError."""
    read = read_documents([file])
    for one in read:
        if one.problem is not None:
            raise CommandError(f"{one.source}:{one.line}: {one.problem}")
    objects = [d.value for d in read if isinstance(d.value, dict)]
    deployments = {_name_of(o): o for o in objects if o.get("kind") == "Deployment"}
    if name in deployments:
        return deployments[name]
    there = ", ".join(map(str, deployments)) or "none"
    raise CommandError(f"there is no Deployment {name} in {file}: it has {there}")


def _name_of(deployment: Mapping[str, Any]) -> object:
    meta = deployment.get("metadata")
    return meta.get("name") if isinstance(meta, dict) else None


def _ask(
    name: str, namespace: str | None, context: str | None, kubeconfig: str | None
) -> dict[str, Any]:
    """Return the Deployment of that name of the cluster. Raises CommandError."""
    from argosy_operator.cli.kubectl.session import Cluster, ask

    async def read(cluster: Cluster) -> dict[str, Any]:
        found = await cluster.objects.get("Deployment", cluster.namespace, name)
        if found is None:
            raise CommandError(f"there is no Deployment {name} in namespace {cluster.namespace}")
        return dict(found)

    return ask(read, namespace, context, kubeconfig)


def manifest(deployment: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ServingDeployment with the Deployment's name and namespace."""
    meta = deployment.get("metadata") or {}
    kept = {key: meta[key] for key in ("name", "namespace") if key in meta}
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "ServingDeployment",
        "metadata": kept,
        "spec": dict(spec),
    }


def as_manifest(notes: Sequence[str], fleet: Mapping[str, Any]) -> str:
    """Return the fleet as YAML with the notes as comments above it."""
    return "\n".join([*(f"# - {note}" for note in notes), as_yaml(fleet)])


def convert(deployment: Mapping[str, Any]) -> _Fleet:
    """Return the spec of a fleet that serves what the Deployment serves, and notes about the rest.

    Raises CommandError if none of its containers runs vLLM, or if it names no model.
    """
    fleet = _Fleet()
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = [c for c in pod.get("containers") or [] if isinstance(c, dict)]
    served = [(c, program) for c in containers if (program := program_of(c)) is not None]
    if not served:
        name = (deployment.get("metadata") or {}).get("name")
        raise CommandError(
            f"no container of Deployment {name} runs `vllm serve` or python -m {_SERVER}, in its "
            "command, its arguments or as the entrypoint of a vllm-openai image"
        )
    served.sort(key=lambda one: not one[1].named)
    container, program = served[0]
    role: dict[str, Any] = {}
    template: dict[str, Any] = {}
    engine: dict[str, Any] = {"type": "vllm", "image": container.get("image") or ""}
    flags = parse_flags(program.words)
    model = _carry_flags(fleet, engine, role, flags)
    if model is None:
        raise CommandError("its vLLM names no model: write it after `vllm serve` in the arguments")
    name = (deployment.get("metadata") or {}).get("name")
    _carry_model(fleet, model, flags, pod, container, str(name))
    _carry_adapters(fleet, engine, flags, pod, container)
    _carry_env(fleet, engine, template, container, program.env)
    _carry_resources(fleet, role, container, template)
    _carry_pod(fleet, template, pod, container, containers)
    _note_rest(fleet, deployment, pod, container, [c for c, _ in served[1:]])
    fleet.notes.extend(
        f"`{other}`: not run; what it does belongs into the image" for other in program.others
    )
    replicas = (deployment.get("spec") or {}).get("replicas")
    replicas = 1 if replicas is None else int(replicas)
    role["replicas"] = {"min": 1, "max": max(replicas, 1)}
    fleet.notes.append(
        f"roles.colocated.replicas: the Deployment has {replicas}; the law chooses between min and "
        "max, so raise max to what may be used"
    )
    fleet.notes.append("slo: a Deployment has none; write the limits that your users need")
    fleet.notes.append(
        f"metadata.name: the fleet's Service has it, too; write another name if a Service {name} "
        "exists, which Argosy would not change"
    )
    if template:
        role["template"] = {"spec": template}
    fleet.spec |= {"engine": engine, "roles": {"colocated": role}}
    fleet.spec["slo"] = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
    strategy = (deployment.get("spec") or {}).get("strategy")
    if strategy:
        fleet.notes.append(
            "its strategy: spec.rollout says how a new revision takes the place of the old one"
        )
    return fleet


@dataclass(slots=True)
class _Program:
    """How a container starts vLLM's server."""

    words: list[str]
    """Arguments of the server."""
    named: bool = True
    """Its command names the server; else only the image does."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that a shell sets before."""
    others: list[str] = field(default_factory=list)
    """What else the shell runs."""


def program_of(container: Mapping[str, Any]) -> _Program | None:
    """Return how the container starts vLLM's server; None if it runs another program.

    A shell's `-c` line is split into commands, and only the one that starts vLLM is read. Variables
    with a plain value are put in where the kubelet or the shell would.
    """
    values = {v["name"]: str(v["value"]) for v in container.get("env") or [] if "value" in v}
    words: list[str] = []
    for part in ("command", "args"):
        given = container.get(part) or []
        if not isinstance(given, list):
            raise TypeError(f"{part} is no list")
        words += (_OF_KUBELET.sub(lambda m: values.get(m[1], m[0]), str(word)) for word in given)
    line = next((at for at, word in enumerate(words[1:4], 2) if _SHELL_LINE.fullmatch(word)), None)
    if line is not None and words[0].rpartition("/")[2] in _SHELLS and line < len(words):
        program = _read_shell(" ".join(words[line:]), values)
    else:
        program = _Program(words)
    words = program.words
    for at, word in enumerate(words):
        serves = word == "serve" and at > 0 and words[at - 1].rpartition("/")[2] == "vllm"
        if serves or word == _SERVER:
            program.words = words[at + 1 :]
            return program
    image = str(container.get("image") or "").rpartition("/")[2]
    if not container.get("command") and "vllm" in image.partition(":")[0]:
        program.named = False
        return program
    return None


def _read_shell(line: str, values: Mapping[str, str]) -> _Program:
    """Return the command of a shell's line that starts vLLM, and what is around it."""
    line = _COMMENT.sub(r"\1", line.replace("\\\n", " "))
    given = dict(values)
    for name, value in _SET.findall(line):
        given.setdefault(name, value.strip("\"'"))
    line = _REDIRECTION.sub(" ", _OF_SHELL.sub(lambda m: _value_of(m, given), line))
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) <= set(";&|\n"):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError as error:
        raise CommandError(f"the shell line of vLLM cannot be read: {error}") from error
    program = _Program([])
    for command in commands:
        words = command[command[:1] == ["export"] :]
        while words and (assigned := _ASSIGNED.fullmatch(words[0])):
            program.env[assigned[1]] = assigned[2]
            words = words[1:]
        if any(word == _SERVER or word.rpartition("/")[2] == "vllm" for word in words):
            program.words = words
        elif words and words[0] not in ("set", "echo"):
            program.others.append(" ".join(words))
    return program


def _value_of(found: re.Match[str], values: Mapping[str, str]) -> str:
    """Return the value of `$NAME` or `${NAME:-default}`; as it is written if it is not known."""
    value = values.get(found[1] or found[3])
    return value if value is not None else found[2] if found[2] is not None else found[0]


def parse_flags(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return flags with their values in order; the model without a flag stands under "".

    `--flag=value` and `--flag value` are the same. Underscores in names are hyphens, as vLLM reads
    them.
    """
    flags: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            name, equals, value = word.partition("=")
            name = _SHORT.get(name, name)
            name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
            flags.append((name, [value] if equals else []))
        elif not flags or flags[-1][0] in _SWITCHES or _is_full(flags[-1]):
            flags.append(("", [word]))
        else:
            flags[-1][1].append(word)
    return flags


def _is_full(flag: tuple[str, list[str]]) -> bool:
    """Whether the next word is not a value of this flag. Names and adapters are lists."""
    name, values = flag
    return bool(values) and name not in ("--served-model-name", _ADAPTERS)


def parse_length(text: str) -> int | None:
    """Return a length as vLLM reads it, such as 8192, 32k or 32K; None if it is no number."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if matched is None:
        return None
    return int(float(matched[1]) * _SCALES.get(matched[2], 1))


def _carry_flags(
    fleet: _Fleet,
    engine: dict[str, Any],
    role: dict[str, Any],
    flags: Sequence[tuple[str, list[str]]],
) -> str | None:
    """Write the flags into the fields that have them, and the rest into engine.args. Returns the
    model."""
    model = next((values[0] for name, values in flags if name == "--model" and values), None)
    args: list[str] = []
    for name, values in flags:
        value = values[0] if values else ""
        if name == "--model":
            continue
        if not name and model is None:
            model = value
        elif not name:
            fleet.notes.append(f"{value}: not carried over; it belongs to no flag that is known")
        elif name == "--served-model-name":
            fleet.spec.setdefault("model", {})["servedNames"] = values
        elif name in _SIZES and (length := parse_length(value)) is not None:
            engine[_SIZES[name]] = length
        elif name == "--dtype" and value in _DTYPES:
            engine["dtype"] = value
        elif name == "--tensor-parallel-size" and value.isdigit():
            role["parallelism"] = {"tensor": int(value)}
        elif name in ("--revision", _ADAPTERS):
            continue
        elif name in _LEFT_OUT:
            fleet.notes.append(f"{name}: {_LEFT_OUT[name]}")
        elif name in _SIZES or name in ("--dtype", "--tensor-parallel-size"):
            fleet.notes.append(f"{name} {value}: the field does not take it; write another value")
        elif any("$" in word for word in values):
            fleet.notes.append(f"{name} {' '.join(values)}: write the value of the variable")
        else:
            args += [f"{name}={value}"] if len(values) == 1 else [name, *values]
    if args:
        engine["args"] = args
    return model


def _carry_model(
    fleet: _Fleet,
    model: str,
    flags: Sequence[tuple[str, list[str]]],
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    name: str,
) -> None:
    """Write model.uri: the claim that is mounted at the model's folder, or the hub."""
    target = fleet.spec.setdefault("model", {})
    revision = next((v[0] for f, v in flags if f == "--revision" and v), None)
    if model.startswith("/"):
        claim = claim_of(model, pod, container)
        if claim is None:
            target["uri"] = "pvc://models/" + model.strip("/").rpartition("/")[2]
            fleet.notes.append(
                f"model.uri: {model} lies on no claim that the container mounts; write "
                "pvc://CLAIM/PATH"
            )
        else:
            target["uri"] = claim
    elif _HUB.fullmatch(model):
        target["uri"] = f"hf://{model}" + (f"@{revision}" if revision else "")
        target["fetch"] = {"size": "100Gi"}
        fleet.notes.append(
            "model.fetch.size: a Job fetches the model once into a claim; write its size, or "
            "claimName for one that exists"
        )
        target.setdefault("servedNames", [model])
    elif model.startswith("s3://"):
        target["uri"] = model
        target["fetch"] = {"size": "100Gi"}
        fleet.notes.append("model.fetch.size: write the size of the model")
    else:
        target["uri"] = f"pvc://models/{model}"
        fleet.notes.append(f"model.uri: {model!r} is no folder and no name of the hub")
    if not target.get("servedNames"):
        target["servedNames"] = [model] if not model.startswith("/") else [name]
        if model.startswith("/"):
            fleet.notes.append(
                f"model.servedNames: clients of vLLM ask for {model!r}, which is no served name "
                f"here; they write {name!r}"
            )


def _carry_adapters(
    fleet: _Fleet,
    engine: dict[str, Any],
    flags: Sequence[tuple[str, list[str]]],
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
) -> None:
    """Write model.adapters: those that lie on a claim that is mounted."""
    adapters = []
    for module in (word for flag, values in flags if flag == _ADAPTERS for word in values):
        name, folder = parse_adapter(module)
        uri = claim_of(folder, pod, container) if name else None
        if uri is not None:
            adapters.append({"name": name, "uri": uri})
        else:
            fleet.notes.append(
                f"{_ADAPTERS} {module}: it lies on no claim that the container mounts; put it on "
                f"one and write model.adapters: [{{name: {name or 'NAME'}, uri: pvc://CLAIM/PATH}}]"
            )
    if adapters:
        fleet.spec["model"]["adapters"] = adapters
        args = [word for word in engine.get("args", []) if word != "--enable-lora"]
        engine.pop("args", None)
        engine |= {"args": args} if args else {}


def parse_adapter(module: str) -> tuple[str, str]:
    """Return name and folder of an adapter, which vLLM takes as name=path or as JSON; empty ones
    if it is neither."""
    if "=" in module and "," not in module:
        name, _, folder = module.partition("=")
        return name, folder
    try:
        read = json.loads(module)
    except ValueError:
        return "", ""
    members = read if isinstance(read, dict) else {}
    return str(members.get("name", "")), str(members.get("path", ""))


def claim_of(folder: str, pod: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    """Return pvc://CLAIM/PATH of a folder of the container; None if it lies on no claim."""
    volumes = {v.get("name"): v for v in pod.get("volumes") or []}
    mounts = sorted(
        container.get("volumeMounts") or [], key=lambda m: -len(str(m.get("mountPath", "")))
    )
    for mount in mounts:
        at = str(mount.get("mountPath", "")).rstrip("/")
        if folder != at and not folder.startswith(f"{at}/"):
            continue
        claim = (volumes.get(mount.get("name")) or {}).get("persistentVolumeClaim")
        if not claim:
            return None
        parts = [str(mount.get("subPath", "")).strip("/"), folder[len(at) :].strip("/")]
        return "/".join([f"pvc://{claim['claimName']}", *(part for part in parts if part)])
    return None


def _carry_env(
    fleet: _Fleet,
    engine: dict[str, Any],
    template: dict[str, Any],
    container: Mapping[str, Any],
    more: Mapping[str, str],
) -> None:
    """Write variables with a plain value into engine.env, the others into the template. `more` are
    set by the shell that starts vLLM."""
    fetch = fleet.spec["model"].get("fetch")
    plain, others, hub = [], [], []
    own = [v for v in container.get("env") or [] if v["name"] not in more]
    for variable in [*own, *({"name": name, "value": value} for name, value in more.items())]:
        if variable["name"] in _OWN_ENV:
            continue
        if variable["name"] in _OF_HANDOVERS:
            fleet.notes.append(f"env {variable['name']}: Argosy writes it in mode disaggregated")
        elif variable["name"] in _HUB_TOKENS and fetch is not None:
            hub.append({**variable, "name": "HF_TOKEN"})
        elif variable["name"] == "VLLM_API_KEY":
            fleet.notes.append(f"env VLLM_API_KEY: {_LEFT_OUT['--api-key']}")
        elif "valueFrom" in variable:
            others.append(dict(variable))
        else:
            plain.append({"name": variable["name"], "value": str(variable.get("value", ""))})
    if plain:
        engine["env"] = plain
    if hub and fetch is not None:
        fetch["template"] = {"spec": {"containers": [{"name": "fetch", "env": hub[:1]}]}}
    if others:
        _engine_of(template)["env"] = others
    if container.get("envFrom") and fetch is not None:
        fleet.notes.append(
            "envFrom: engines have it; the Job that fetches the model gets a token of the hub by "
            "model.fetch.template"
        )


def _engine_of(template: dict[str, Any]) -> dict[str, Any]:
    """Return the template's container `engine`, which is made if it is not there."""
    containers: list[dict[str, Any]] = template.setdefault("containers", [{"name": "engine"}])
    return containers[0]


def _carry_resources(
    fleet: _Fleet, role: dict[str, Any], container: Mapping[str, Any], template: dict[str, Any]
) -> None:
    """Write GPUs, CPU and memory into the role's resources, other resources into the template."""
    given = container.get("resources") or {}
    limits, requests = given.get("limits") or {}, given.get("requests") or {}
    resources: dict[str, Any] = {"gpu": 0}
    extended = {**requests, **limits}
    for key in sorted(extended):
        if key.endswith("/gpu") or key.startswith("nvidia.com/mig-"):
            resources["gpu"] = int(extended.pop(key))
            if key != "nvidia.com/gpu":
                resources["gpuResource"] = key
    # What resources.memory says is the limit, too: less than the old one would end the engine.
    for key, first, second in (("cpu", requests, limits), ("memory", limits, requests)):
        if key in extended:
            resources[key] = str(first.get(key, second.get(key)))
        extended.pop(key, None)
    if "memory" in requests and requests["memory"] != limits.get("memory"):
        fleet.notes.append(
            f"resources.memory: request and limit are one value here; the Deployment requests "
            f"{requests['memory']}" + ("" if "memory" in limits else " and has no limit")
        )
    role["resources"] = resources
    limited = {"cpu": str(limits["cpu"])} if "cpu" in limits else {}
    amounts = {key: str(value) for key, value in extended.items()}
    parts = {"requests": amounts, "limits": limited | amounts}
    if any(parts.values()):
        _engine_of(template)["resources"] = {name: part for name, part in parts.items() if part}


def _carry_pod(
    fleet: _Fleet,
    template: dict[str, Any],
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    containers: Sequence[Mapping[str, Any]],
) -> None:
    """Write what the pod has besides vLLM into the role's template."""
    for key in _OF_POD:
        if pod.get(key):
            template[key] = pod[key]
    for key in _OF_CONTAINER:
        if container.get(key):
            _engine_of(template)[key] = container[key]
    kept = list(_volumes(fleet, pod, container))
    volumes = {volume["name"]: volume for volume, _ in kept}
    if kept:
        _engine_of(template)["volumeMounts"] = [mount for _, mount in kept]
    others = [c for c in containers if c is not container]
    if others:
        template["containers"] = [_engine_of(template), *others]
    mounted = {mount["name"] for other in others for mount in other.get("volumeMounts") or []}
    for volume in pod.get("volumes") or []:
        if volume["name"] in mounted:
            volumes.setdefault(volume["name"], volume)
    if volumes:
        template["volumes"] = list(volumes.values())
    if pod.get("initContainers"):
        names = ", ".join(str(c.get("name")) for c in pod["initContainers"])
        fleet.notes.append(
            f"initContainers {names}: not carried over; model.uri says where the model comes from, "
            "and the gateway leads handovers; write others into roles.colocated.template"
        )
    if any(container.get(key) for key in _PROBES):
        fleet.notes.append("probes and lifecycle: Argosy writes its own")


def _note_rest(
    fleet: _Fleet,
    deployment: Mapping[str, Any],
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    servers: Sequence[Mapping[str, Any]],
) -> None:
    """Name what is in no field of the fleet. `servers` are further containers that run vLLM."""
    for name in (c.get("name") for c in servers):
        fleet.notes.append(
            f"container {name} runs vLLM, too: it is carried over as it is, and gets no requests"
        )
    given = [key for key in pod if pod[key] and key not in _READ_OF_POD]
    given += [key for key in container if container[key] and key not in _READ_OF_CONTAINER]
    fleet.notes.extend(
        f"{key}: not carried over; roles.colocated.template takes it" for key in given
    )
    if pod.get("terminationGracePeriodSeconds") not in (None, 30):
        fleet.notes.append("terminationGracePeriodSeconds: it follows from spec.drain.timeout")
    meta = deployment["spec"]["template"].get("metadata") or {}
    if meta.get("labels") or meta.get("annotations"):
        fleet.notes.append(
            "labels and annotations of its pods: not carried over, because its Services would send "
            "requests past the gateway"
        )


def _volumes(
    fleet: _Fleet, pod: Mapping[str, Any], container: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the volumes that the template keeps, each with its mount: all but those of the model
    and its adapters."""
    volumes = {v.get("name"): v for v in pod.get("volumes") or []}
    model = fleet.spec["model"]
    uris = [str(model.get("uri", "")), *(str(one["uri"]) for one in model.get("adapters", ()))]
    claims = {u.removeprefix("pvc://").partition("/")[0] for u in uris if u.startswith("pvc://")}
    for mount in container.get("volumeMounts") or []:
        volume = volumes.get(mount.get("name"))
        if volume is None:
            continue
        of = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if of in claims:
            continue
        if f"{mount.get('mountPath', '')}/".startswith("/models/"):
            fleet.notes.append(
                f"volume {mount.get('name')}: /models is Argosy's; mount it elsewhere"
            )
            continue
        if "huggingface" in str(mount.get("mountPath", "")) and fleet.spec["model"].get("fetch"):
            fleet.notes.append(
                f"volume {mount.get('name')}: the hub's cache is not read; see model.fetch"
            )
            continue
        name = "shm" if mount.get("mountPath") == _SHM else volume["name"]
        name = f"own-{name}" if name in OWN_VOLUMES else name
        yield {**volume, "name": name}, {**mount, "name": name}
