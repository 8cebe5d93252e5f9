"""What all verbs share: options, exit statuses, sentences of failures, and how they print. Pure.

docs/reference/kubectl.md documents the statuses; scripts read them.
"""

import json
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Any, Literal

import typer

from argosy_operator.core.snapshot.actions import ErrorKind

Namespace = Annotated[
    str | None, typer.Option("-n", "--namespace", help="Default: the current context's.")
]
AllNamespaces = Annotated[
    bool, typer.Option("-A", "--all-namespaces", help="Fleets of all namespaces.")
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig. Default: the current.")
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", help="Default: $KUBECONFIG, else the pod's account or ~/.kube/config."
    ),
]
Output = Annotated[
    Literal["table", "wide", "json", "yaml"],
    typer.Option("-o", "--output", help="table, wide, json or yaml."),
]
Files = Annotated[
    list[str],
    typer.Argument(help="Manifests in YAML or JSON, or folders of them; - is standard input."),
]


class Exit(IntEnum):
    """Exit statuses of `kubectl argosy`, each with its meaning."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "Exit":
        status = int.__new__(cls, value)
        status._value_ = value
        status.meaning = meaning
        return status

    OK = 0, "done"
    FAILED = (
        1,
        "what was asked for does not exist or cannot be done, `lint` found an error, or a rollout "
        "failed or went back",
    )
    USAGE = 2, "the command line is wrong"
    UNREACHABLE = 3, "no API server answers, or the kubeconfig leads to none"
    FORBIDDEN = 4, "the API server refuses the account"
    NOT_INSTALLED = 5, "the cluster does not know ServingDeployments"
    GOES_ON = 6, "`rollout status`: the rollout is not over, or not within `--timeout`"
    INTERRUPTED = 130, "interrupted from the keyboard"


INSTALL = (
    "this cluster does not know ServingDeployments: Argosy is not installed. Install it with `helm "
    "install argosy charts/argosy -n argosy-system --create-namespace` (README.md), or its CRDs "
    "alone with `argosy operator crds | kubectl apply --server-side -f -`"
)


class CommandError(Exception):
    """A verb cannot do what was asked. The text is the sentence that the user reads."""

    def __init__(self, sentence: str, status: Exit = Exit.FAILED) -> None:
        super().__init__(sentence)
        self.status = status


def refused(kind: ErrorKind, what: str, message: str) -> CommandError:
    """The sentence for a call of the API server that failed.

    `what` is verb, kind and name, such as "list ServingDeployment"; `message` is the server's own.
    """
    if kind is ErrorKind.NOT_FOUND and "ServingDeployment" in what:
        return CommandError(INSTALL, Exit.NOT_INSTALLED)
    if kind is ErrorKind.FORBIDDEN:
        return CommandError(
            f"you may not {what}: {message}. Ask an administrator for a Role with that verb and "
            "resource",
            Exit.FORBIDDEN,
        )
    if kind is ErrorKind.UNAUTHORIZED:
        return CommandError(
            f"the API server does not accept these credentials ({message}): log in again, or name "
            "another --context",
            Exit.FORBIDDEN,
        )
    if kind is ErrorKind.TRANSPORT:
        return CommandError(
            f"no API server can be reached ({message}): check `kubectl cluster-info`, --context "
            "and --kubeconfig",
            Exit.UNREACHABLE,
        )
    return CommandError(f"cannot {what}: {message}")


def unknown_fleet(name: str, namespace: str, others: list[str]) -> CommandError:
    """There is no such fleet; `others` are the fleets of the namespace."""
    there = f"it has {', '.join(sorted(others))}" if others else "it has none; try -A"
    return CommandError(f"there is no ServingDeployment {name} in namespace {namespace}: {there}")


Row = Sequence[str]


def table(head: Row, rows: Sequence[Row], indent: str = "") -> str:
    """Columns as kubectl prints them: capitals above, three spaces between, nothing behind."""
    lines = [tuple(cell.upper() for cell in head), *(tuple(c or "-" for c in row) for row in rows)]
    wide = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = ("   ".join(cell.ljust(w) for cell, w in zip(r, wide, strict=True)) for r in lines)
    return "\n".join(f"{indent}{line}".rstrip() for line in padded)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def as_yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=1000)
    return text.rstrip("\n")


def data(value: Any, output: str) -> str:
    """The value as `output`, "json" or "yaml"."""
    return as_json(value) if output == "json" else as_yaml(value)


def items(objects: Sequence[Any]) -> dict[str, Any]:
    """Objects as the list that `kubectl get -o json` prints."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
