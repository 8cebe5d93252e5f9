"""The typer application: which verbs there are, and the exit status of each call.

A verb's module imports at its top only what all verbs need; its function imports the rest, so that
`kubectl argosy explain` starts without kopf.
"""

import typer

from argosy_operator.cli.crds import crds
from argosy_operator.cli.explain import explain
from argosy_operator.cli.run import run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The Argosy operator and its tools.",
)
for verb in (run, crds, explain):
    app.command()(verb)


def main(argv: list[str]) -> int:
    """Entry point of the `argosy operator` command; returns the exit status."""
    try:
        result = app(args=argv, prog_name="argosy operator", standalone_mode=False)
    except typer.Exit as exit_:
        return exit_.exit_code
    except typer.Abort:
        return 130
    except Exception as error:
        show = getattr(error, "show", None)  # click's usage errors print their own message
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", 2))
    return result if isinstance(result, int) else 0
