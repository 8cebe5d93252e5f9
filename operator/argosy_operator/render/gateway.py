"""The fleet's gateway: one Deployment with its own account, and the Service that clients use.

The gateway may read the pods of its namespace and its own settings; nothing in its Role comes from
the spec. The fleet owns it, so it keeps serving when the operator is uninstalled.

What the spec says about requests is in a ConfigMap that running gateways follow, so an edit of it
replaces no pod (designs/0028). Gateways from before that have the same words as arguments.

A pod's token is bound to the uid of its ServiceAccount, and the kubelet renews it only after most
of an hour. If the account is deleted and created again, the gateway pods must be replaced: the pod
template then names the new account (`account_of`).
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, digest, seconds
from argosy_operator.core.snapshot.snapshot import whole_seconds
from argosy_operator.render.common import (
    DEREGISTER_S,
    GRACE_MARGIN_S,
    TLS_DIR,
    TOKEN_FILE,
    Images,
    access,
    command_line,
    container_security,
    disruption_budget,
    http_probe,
    identity_env,
    keep_template,
    lay_over,
    liveness_probe,
    metadata,
    note_inputs,
    note_installed,
    pod_security,
    read_only_mount,
    scrape_annotations,
    spread,
    template_of,
    tls_volume,
    token_volume,
)
from argosy_operator.render.fleet import Callers

TEMPLATE = 4
"""Number of the pod template that this module writes. Raise it with every change of the template,
or an upgrade of the operator replaces running gateways."""
CONTAINER = names.GATEWAY_ROLE
CPU_TARGET = "700m"
"""CPU of one gateway that the autoscaler keeps: it computes on one core at most."""
DRAINS_S = (60, 300, 900, 3600, 24 * 3600)
"""Drain times that pods are made for, s: the kubelet waits for the least that holds that of the
spec. The gateway ends itself after the drain time of then, which may change while it runs and the
pod's may not, so an edit replaces gateways only if it leads over one of these. Kubernetes waits for
the end of a namespace as long as half of the longest grace of its pods, however early they have
gone: for a drain of an hour that is half an hour, for the default of 300 s less than three
minutes."""


def objects(
    fleet: ServingDeployment,
    images: Images,
    *,
    account: str | None = None,
    shows_token: bool = True,
    certificate: str | None = None,
    live: Object | None = None,
    callers: Callers | None = None,
    canary: tuple[str, int] | None = None,
    holds_first_tokens: bool = False,
) -> list[Object]:
    """All objects of the gateway, in the order in which to apply them.

    `account` is the uid that the pod template names, `account_of` the observed objects.
    `shows_token`: engines may ask for one. `certificate`: the Secret to show to engines with TLS.
    `live`: the Deployment as it exists, whose pods another version of this code may have rendered.
    `callers`: accounts of pods that run; without them those of the spec. `canary`: a revision, and
    the percent of the requests that it gets. `holds_first_tokens`: what the law has chosen where
    `slo.firstToken` is Auto.
    """
    name, callers = names.gateway(fleet.name), callers or Callers.of(fleet, images)
    pod = _pod(fleet, images, account, shows_token)
    if certificate is not None:
        _show_certificate(pod["spec"], certificate)
    over = template_of(fleet, names.GATEWAY_ROLE, images.template)
    front = _deployment(fleet, images, lay_over(pod, over, _selector(fleet)))
    made_of = {
        "template": over,
        "drain": _longest_drain_s(fleet),
        "image": images.gateway,
        "account": account,
        "token": shows_token,
        "certificate": certificate,
    }
    front = keep_template(note_inputs(front, digest(made_of), TEMPLATE), live)
    return [
        *_access(fleet, callers.gateways),
        _service(fleet),
        disruption_budget(fleet, name, names.GATEWAY_ROLE),
        _settings(fleet, canary, holds_first_tokens=holds_first_tokens),
        front,
        *_autoscaler(fleet),
    ]


def _settings(
    fleet: ServingDeployment, canary: tuple[str, int] | None, *, holds_first_tokens: bool
) -> Object:
    words = _words(fleet, canary, holds_first_tokens=holds_first_tokens)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(fleet, names.settings(fleet.name)),
        "data": {names.SETTINGS_KEY: json.dumps(words)},
    }


def account_of(
    account: Mapping[str, Any] | None, deployment: Mapping[str, Any] | None
) -> str | None:
    """The account's uid if it is younger than the gateway's Deployment, else None.

    While the account does not exist, the uid that the Deployment's template has now.
    """
    if deployment is None:
        return None
    if account is None:
        template = deployment["spec"]["template"]["metadata"]
        uid = (template.get("annotations") or {}).get(names.ACCOUNT)
        return None if uid is None else str(uid)
    objects_at = (seconds(o["metadata"].get("creationTimestamp")) for o in (account, deployment))
    account_s, deployment_s = objects_at
    if account_s is None or deployment_s is None or account_s <= deployment_s:
        return None
    return str(account["metadata"]["uid"])


def _metadata(fleet: ServingDeployment, name: str | None = None) -> Object:
    return metadata(fleet, name or names.gateway(fleet.name), names.GATEWAY_ROLE)


def _access(fleet: ServingDeployment, accounts: Iterable[str]) -> list[Object]:
    settings = {"resources": ["configmaps"], "resourceNames": [names.settings(fleet.name)]}
    rules: list[Object] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], **settings, "verbs": ["get"]},
    ]
    return access(fleet, names.gateway(fleet.name), names.GATEWAY_ROLE, rules, accounts)


def _service(fleet: ServingDeployment) -> Object:
    port = {
        "name": "http",
        "port": names.SERVICE_PORT,
        "targetPort": names.GATEWAY_PORT,
        "protocol": "TCP",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(fleet, names.service(fleet.name)),
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector(fleet.name, names.GATEWAY_ROLE),
            "ports": [port],
        },
    }


def _autoscaler(fleet: ServingDeployment) -> list[Object]:
    """For a range of gateways. The metric is of the gateway's container alone, since a mesh may add
    others, and an amount, since a share of the request needs that there is one."""
    scaling = fleet.spec.routing.autoscaling
    if scaling is None or scaling.policy != "CPU":
        return []
    cpu = {
        "name": "cpu",
        "container": CONTAINER,
        "target": {"type": "AverageValue", "averageValue": CPU_TARGET},
    }
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": names.gateway(fleet.name)}
    return [
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": _metadata(fleet),
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": scaling.fewest,
                "maxReplicas": scaling.max,
                "metrics": [{"type": "ContainerResource", "containerResource": cpu}],
            },
        }
    ]


def _selector(fleet: ServingDeployment) -> dict[str, str]:
    return names.selector(fleet.name, names.GATEWAY_ROLE)


def _pod(
    fleet: ServingDeployment, images: Images, account: str | None, shows_token: bool
) -> Object:
    annotations = scrape_annotations(names.GATEWAY_ADMIN_PORT)
    if account is not None:
        annotations[names.ACCOUNT] = account
    pod: Object = {
        "serviceAccountName": names.gateway(fleet.name),
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": DEREGISTER_S + _longest_drain_s(fleet) + GRACE_MARGIN_S,
        "topologySpreadConstraints": spread(_selector(fleet)),
        "containers": [_container(fleet, images)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if shows_token:
        _show_token(fleet, pod)
    labels = names.pod_labels(fleet.name, names.GATEWAY_ROLE)
    labels |= names.recommended(fleet.name, names.GATEWAY_ROLE)
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}


def _deployment(fleet: ServingDeployment, images: Images, template: Object) -> Object:
    routing = fleet.spec.routing
    # Where others scale, applies leave the number out (designs/0033).
    replicas = {"replicas": routing.replicas} if routing.autoscaling is None else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(fleet) | {"annotations": note_installed(images.template)},
        "spec": {
            **replicas,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": _selector(fleet)},
            # Gateways are replaced one by one, none before its successor.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": template,
        },
    }


def _longest_drain_s(fleet: ServingDeployment) -> int:
    """Return the time of a drain that the pods are made for, s."""
    return next(longest_s for longest_s in DRAINS_S if longest_s >= _drain_s(fleet))


def _drain_s(fleet: ServingDeployment) -> int:
    return whole_seconds(fleet.spec.drain.timeout.seconds)


def _container(fleet: ServingDeployment, images: Images) -> Object:
    admin = names.GATEWAY_ADMIN_PORT
    return {
        "name": CONTAINER,
        "image": images.gateway,
        "command": ["argosy"],
        "args": ["gateway", "run", *_args(fleet)],
        "env": identity_env(),
        "ports": [
            {"name": "http", "containerPort": names.GATEWAY_PORT},
            {"name": "admin", "containerPort": admin},
        ],
        "securityContext": container_security(),
        "startupProbe": http_probe("/health", admin, period_s=1, failures=60),
        "readinessProbe": http_probe("/ready", admin, period_s=2, failures=2),
        "livenessProbe": liveness_probe("/health", admin),
        "lifecycle": {"preStop": {"sleep": {"seconds": DEREGISTER_S}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
    }


def _show_token(fleet: ServingDeployment, pod: Object) -> None:
    """Add the token to a gateway's pod."""
    (container,) = pod["containers"]
    container["args"] += ["--token-file", TOKEN_FILE]
    container["volumeMounts"].append(read_only_mount(names.TOKEN_VOLUME))
    pod["volumes"].append(token_volume(fleet))


def _show_certificate(pod: Object, secret: str) -> None:
    """Add the certificate to a gateway's pod."""
    (container,) = pod["containers"]
    container["args"] += ["--tls-dir", TLS_DIR]
    container["volumeMounts"].append(read_only_mount(names.TLS_VOLUME))
    pod["volumes"].append(tls_volume(secret))


def _args(fleet: ServingDeployment) -> list[str]:
    """Arguments of `argosy gateway run` (designs/0001-seams.md §2)."""
    return command_line(
        {
            "--fleet": fleet.name,
            "--namespace": fleet.namespace,
            "--settings": names.settings(fleet.name),
        }
    )


def _words(
    fleet: ServingDeployment, canary: tuple[str, int] | None, *, holds_first_tokens: bool
) -> list[str]:
    """The settings: arguments that the gateway takes from its ConfigMap, too."""
    spec = fleet.spec
    percent, zero = spec.routing.shed_ttft_percent, spec.autoscaling.scale_to_zero
    flags: dict[str, object] = {
        "--strategy": spec.routing.strategy,
        "--max-queue": spec.routing.max_queue,
        "--queue-timeout-s": spec.routing.queue_timeout.seconds,
        "--wake-timeout-s": zero.wait.seconds if zero is not None else None,
        "--shed-ttft-factor": None if percent is None else percent / 100,
        "--max-body-bytes": spec.engine.max_body_bytes,
        "--drain-timeout-s": _drain_s(fleet),
        "--drain-mode": None if spec.drain.mode == "finish" else spec.drain.mode,
        "--canary": None if canary is None else f"{canary[0]}:{canary[1]}",
    }
    if spec.slo is not None:
        if spec.routing.queue != "none":
            flags |= {
                "--queue": spec.routing.queue,
                "--engine-max-num-seqs": spec.engine.max_num_seqs,
            }
        chosen = spec.slo.first_token
        holds = holds_first_tokens if chosen == "Auto" else chosen == "WithinTarget"
        flags |= {
            "--slo-ttft-ms": round(spec.slo.ttft.target.ms),
            "--slo-tpot-ms": round(spec.slo.tpot.target.ms),
            "--first-token": "within-target" if holds else None,
        }
    classes = spec.slo.classes if spec.slo is not None else ()
    called = [word for name in fleet.served_names for word in ("--served-name", name)]
    if spec.engine.type != "argosy" and spec.mode == "colocated":
        called.append("--pass-other-paths")
    called += [word for one in spec.model.adapters for word in ("--adapter", one.name)]
    return [*called, *command_line(flags)] + [
        f"--slo-class={c.name}:{round(c.ttft.target.ms)}:{round(c.tpot.target.ms)}:{c.priority}"
        for c in classes
    ]
