"""The typer application of `argosy operator`: which verbs there are.

A verb's module imports at its top only what all verbs need; its function imports the rest, so that
`kubectl argosy explain` starts without kopf."""

from argosy_operator.cli.kubectl.app import application, invoked
from argosy_operator.cli.kubectl.explain import explain
from argosy_operator.cli.run import run


def crds() -> None:
    """Print the CustomResourceDefinitions."""
    from argosy_operator.api.crd import as_yaml, definitions

    print("".join(f"---\n{as_yaml(crd)}" for crd in definitions()), end="")


app = application("The Argosy operator and its tools.", (run, crds, explain))


def main(argv: list[str]) -> int:
    """Entry point of the `argosy operator` command; returns the exit status."""
    return invoked(app, argv, "argosy operator")
