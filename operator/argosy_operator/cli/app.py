"""The typer application of `argosy operator`: which verbs there are.

A verb's module imports at its top only what all verbs need; its function imports the rest, so that
`kubectl argosy explain` starts without kopf.
"""

import typer

from argosy_operator.cli.crds import crds
from argosy_operator.cli.kubectl.app import invoked
from argosy_operator.cli.kubectl.verbs.explain import explain
from argosy_operator.cli.run import run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="The Argosy operator and its tools.",
)
for verb in (run, crds, explain):
    app.command()(verb)


def main(argv: list[str]) -> int:
    """Entry point of the `argosy operator` command; returns the exit status."""
    return invoked(app, argv, "argosy operator")
