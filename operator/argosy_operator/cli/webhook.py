"""`argosy operator webhook`: answers the API server with warnings about fleets.

In a cluster the flags come from the chart (charts/argosy/templates/webhook.yaml).
"""

import asyncio
import datetime as dt
import logging
import re
from typing import Annotated, Literal

import typer

Configuration = Annotated[str, typer.Option(help="Name of the ValidatingWebhookConfiguration.")]
Host = Annotated[
    str, typer.Option(help="Name by which the API server calls: SERVICE.NAMESPACE.svc.")
]
Port = Annotated[int, typer.Option(help="Port of HTTPS.")]
MetricsPort = Annotated[int, typer.Option(help="Port of probes and metrics.")]
CertificateLifetime = Annotated[
    str,
    typer.Option(
        help="How long a certificate counts, such as 168h. The next one is made after half of it."
    ),
]
Kubeconfig = Annotated[
    str | None, typer.Option(help="Default: $KUBECONFIG, else the pod's account.")
]
LogFormat = Annotated[
    Literal["auto", "json", "text"],
    typer.Option(help="Format of the log. auto: text on a terminal, JSON elsewhere."),
]
LogLevel = Annotated[Literal["info", "debug"], typer.Option(help="Level of the log.")]

_LIFETIME = re.compile("(?P<number>[1-9][0-9]{0,5})(?P<unit>[smh])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
_SHORTEST = dt.timedelta(seconds=20)


def webhook(
    configuration: Configuration,
    host: Host,
    port: Port = 8443,
    metrics_port: MetricsPort = 8081,
    certificate_lifetime: CertificateLifetime = "168h",
    kubeconfig: Kubeconfig = None,
    log_format: LogFormat = "auto",
    log_level: LogLevel = "info",
) -> int:
    """Answer the API server with warnings about fleets until a signal ends it (status 0)."""
    from argosy_operator.ports.access import AccessError
    from argosy_operator.shell.telemetry.logs import configure
    from argosy_operator.shell.webhook import serve

    configure(log_format, log_level)
    options = serve.Options(
        configuration, host, lifetime(certificate_lifetime), port, metrics_port, kubeconfig
    )
    try:
        return asyncio.run(serve.run(options))
    except AccessError as error:
        logging.getLogger("argosy.cli").error("cannot reach the API server: %s", error)
        return 1


def lifetime(text: str) -> dt.timedelta:
    """The time that a text such as 168h means. Raises typer.BadParameter for another one."""
    found = _LIFETIME.fullmatch(text)
    time = found and dt.timedelta(**{_UNITS[found["unit"]]: int(found["number"])})
    if not time or not _SHORTEST <= time <= dt.timedelta(days=365):
        why = f"{text}: write a number and s, m or h, from 20s to 8760h, such as 168h"
        raise typer.BadParameter(why, param_hint="--certificate-lifetime")
    return time
