"""`argosy operator run`: reads the flags and starts the control loop of `shell/app.py`.

In a cluster the flags come from the chart (charts/argosy/templates/operator.yaml)."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Coroutine, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from argosy_operator.render.common import Images

REGISTRY = "ghcr.io/argosy-serving"
"""`images.registry` of the chart, which `python -m docs.generate --write` copies from there."""

DEFAULT_ENGINE = f"{REGISTRY}/engine:{version('argosy')}"
DEFAULT_FETCH = f"{REGISTRY}/fetch:{version('argosy')}"
DEFAULT_GATEWAY = f"{REGISTRY}/gateway:{version('argosy')}"


def default_images() -> "Images":
    """All of them, with the defaults of pods that an operator has whose chart sets none."""
    from argosy_operator.render.common import Images

    return Images(DEFAULT_ENGINE, DEFAULT_GATEWAY, fetch=DEFAULT_FETCH)


_NAMESPACE_BUDGET = re.compile("(?P<name>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)=(?P<gpus>[0-9]{1,6})")
_HEADER = re.compile(r"(?P<name>[A-Za-z0-9!#$%&'*+.^_`|~-]+)=(?P<value>[!-~]([ -~]*[!-~])?)")
_IDENTITY = ("POD_NAMESPACE", "SERVICE_ACCOUNT", "POD_NAME", "POD_UID")

if TYPE_CHECKING:
    from argosy_operator.adapters.prometheus.allowlist import Allowlist
    from argosy_operator.adapters.trust import Account
    from argosy_operator.api.model import PodTemplate
    from argosy_operator.render.common import Images

Namespace = Annotated[str, typer.Option(help="Namespace to watch, or all.")]
PrometheusUrl = Annotated[str | None, typer.Option(help="URL of Prometheus.")]
PrometheusTokenFile = Annotated[
    Path | None, typer.Option(help="File with the bearer token for that URL.")
]
PrometheusCaFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the certificates of the authorities that are trusted for that URL. "
        "Default: the public ones."
    ),
]
PrometheusHeader = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Header of requests to that URL: X-Scope-OrgID=team-a. May be repeated.",
    ),
]
PrometheusHeadersFolder = Annotated[
    Path | None,
    typer.Option(help="Folder with one file for each further header, of its name."),
]
PrometheusAllow = Annotated[
    list[str] | None,
    typer.Option(
        help="Another address that fleets may name: host:port, *.suffix:port or "
        "network/bits:port. May be repeated."
    ),
]
EngineImage = Annotated[str, typer.Option(help="Image of engines without spec.engine.image.")]
GatewayImage = Annotated[str, typer.Option(help="Image of the fleets' gateways.")]
FetchImage = Annotated[str, typer.Option(help="Image of the Jobs that fetch models.")]
PodTemplateText = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="A PodTemplateSpec for the pods of all fleets, whose own templates come over it.",
    ),
]
LeaseNamespace = Annotated[
    str | None, typer.Option(help="Namespace of the Lease. Default: $POD_NAMESPACE, else default.")
]
LeaseName = Annotated[str, typer.Option(help="Name of the Lease.")]
MetricsPort = Annotated[int, typer.Option(help="Port of probes and metrics.")]
Kubeconfig = Annotated[
    str | None, typer.Option(help="Default: $KUBECONFIG, else the pod's account.")
]
KubeApiQps = Annotated[
    float,
    typer.Option(min=1.0, max=10_000.0, help="Calls per second to the API server, on average."),
]
KubeApiBurst = Annotated[
    int,
    typer.Option(min=1, max=100_000, help="Calls to the API server at once, after a quiet time."),
]
GpuBudget = Annotated[
    int | None,
    typer.Option(
        min=1, max=100_000, help="GPUs that all fleets may hold together. Default: no limit."
    ),
]
NamespaceGpuBudget = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMESPACE=N",
        help="GPUs that the fleets of a namespace may hold together: team-a=16. May be repeated.",
    ),
]
ImageRollouts = Annotated[
    int,
    typer.Option(
        min=0,
        max=100_000,
        help="Fleets of imageUpdates Keep that may roll out newer default images at one time. "
        "0, the default: none.",
    ),
]
LogFormat = Annotated[
    Literal["auto", "json", "text"],
    typer.Option(help="Format of the log. auto: text on a terminal, JSON elsewhere."),
]
LogLevel = Annotated[
    Literal["info", "debug"], typer.Option(help="debug also logs each step of each reconcile.")
]


def run(
    namespace: Namespace = "all",
    prometheus_url: PrometheusUrl = None,
    prometheus_token_file: PrometheusTokenFile = None,
    prometheus_ca_file: PrometheusCaFile = None,
    prometheus_header: PrometheusHeader = None,
    prometheus_headers_folder: PrometheusHeadersFolder = None,
    prometheus_allow: PrometheusAllow = None,
    engine_image: EngineImage = DEFAULT_ENGINE,
    gateway_image: GatewayImage = DEFAULT_GATEWAY,
    fetch_image: FetchImage = DEFAULT_FETCH,
    pod_template: PodTemplateText = None,
    lease_namespace: LeaseNamespace = None,
    lease_name: LeaseName = "argosy-operator",
    metrics_port: MetricsPort = 8081,
    kubeconfig: Kubeconfig = None,
    kube_api_qps: KubeApiQps = 100.0,
    kube_api_burst: KubeApiBurst = 200,
    gpu_budget: GpuBudget = None,
    namespace_gpu_budget: NamespaceGpuBudget = None,
    image_rollouts: ImageRollouts = 0,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> None:
    """Run the operator until a signal stops it (status 0) or it loses its Lease (status 1)."""
    from argosy.logs import configure
    from argosy_operator.adapters.access import AccessError
    from argosy_operator.adapters.prometheus.server import ServerAccess
    from argosy_operator.core.budgets import Budgets
    from argosy_operator.shell import app

    configure(log_format, log_level, quiet=("kopf", "httpx"))
    images = (engine_image, gateway_image, fetch_image)
    options = app.Options(
        images=_images(images, pod_template),
        namespace=None if namespace == "all" else namespace,
        prometheus_url=prometheus_url,
        prometheus_access=ServerAccess(
            token_file=prometheus_token_file,
            ca_file=prometheus_ca_file,
            headers=_headers(prometheus_header or ()),
            headers_folder=prometheus_headers_folder,
        ),
        prometheus_allowed=_allowlist(prometheus_allow or ()),
        lease_namespace=lease_namespace or os.environ.get("POD_NAMESPACE") or "default",
        lease_name=lease_name,
        metrics_port=metrics_port,
        kubeconfig=kubeconfig,
        kube_api_qps=kube_api_qps,
        kube_api_burst=kube_api_burst,
        gpu_budgets=Budgets(gpu_budget, _namespace_budgets(namespace_gpu_budget or ())),
        image_rollouts=image_rollouts,
        account=_account(os.environ),
    )
    _end_with(app.run(options), AccessError)


def _images(names: tuple[str, str, str], template: str | None) -> "Images":
    from argosy_operator.render.common import Images

    engine, gateway, fetch = names
    return Images(engine, gateway, _pod_template(template), fetch=fetch)


def _pod_template(text: str | None) -> "PodTemplate":
    """Return the template. Raises typer.BadParameter for a text that is none, and for fields that
    are not used."""
    from argosy_operator.api.model import PodTemplate
    from argosy_operator.core.snapshot.objects import path
    from argosy_operator.core.snapshot.template import refusals_of_installed

    try:
        found = PodTemplate.model_validate_json(text or "{}")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--pod-template") from error
    refused = [f"{path(one.place)}: {one.sentence}" for one in refusals_of_installed(found)]
    if refused:
        raise typer.BadParameter("; ".join(refused), param_hint="--pod-template")
    return found


def _namespace_budgets(texts: Sequence[str]) -> dict[str, int]:
    """GPUs by namespace. Raises typer.BadParameter for a text that is not NAMESPACE=N."""
    budgets: dict[str, int] = {}
    for text in texts:
        found = _NAMESPACE_BUDGET.fullmatch(text)
        if found is None or not 1 <= int(found["gpus"]) <= 100_000:
            why = f"{text}: write a namespace and a number from 1 to 100000, such as team-a=16"
            raise typer.BadParameter(why, param_hint="--namespace-gpu-budget")
        if found["name"] in budgets:
            why = f"{found['name']} is named twice: leave one out"
            raise typer.BadParameter(why, param_hint="--namespace-gpu-budget")
        budgets[found["name"]] = int(found["gpus"])
    return budgets


def _account(environ: Mapping[str, str]) -> "Account | None":
    """From the downward API, as the chart has it; None outside of a cluster."""
    from argosy_operator.adapters.trust import Account

    values = [environ.get(name, "") for name in _IDENTITY]
    return Account(*values) if all(values) else None


def _allowlist(texts: Sequence[str]) -> "Allowlist":
    from argosy_operator.adapters.prometheus.allowlist import Allowlist

    try:
        return Allowlist.of(texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--prometheus-allow") from error


def _headers(texts: Sequence[str]) -> dict[str, str]:
    """Headers by name. Raises typer.BadParameter for a text that is not NAME=VALUE."""
    headers: dict[str, str] = {}
    for text in texts:
        found = _HEADER.fullmatch(text)
        if found is None:
            raise typer.BadParameter(
                f"{text.partition('=')[0]}: write a header's name and its value, such as "
                "X-Scope-OrgID=team-a",
                param_hint="--prometheus-header",
            )
        headers[found["name"]] = found["value"]
    return headers


def _end_with(running: Coroutine[Any, Any, int], unreachable: type[Exception]) -> NoReturn:
    """Run to the end, and end the process with its status."""
    try:
        status = asyncio.run(running)
    except unreachable as error:
        logging.getLogger("argosy.cli").error("cannot reach the API server: %s", error)
        status = 1
    sys.stderr.flush()
    # kopf runs in a daemon thread. A process that lost its Lease must not wait for it.
    os._exit(status)
