"""The typer application of `kubectl argosy`: its verbs, and how a failure becomes a sentence."""

import sys

import typer

from argosy_operator.cli.kubectl.exits import CommandError, Exit
from argosy_operator.cli.kubectl.verbs.explain import explain
from argosy_operator.cli.kubectl.verbs.status import status

NAME = "kubectl argosy"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="See and steer fleets that Argosy serves.",
)
VERBS = (status, explain)
for verb in VERBS:
    app.command()(verb)


def main(argv: list[str]) -> int:
    """Entry point of `kubectl argosy`; returns the exit status."""
    return invoked(app, argv, NAME)


def invoked(of: typer.Typer, argv: list[str], name: str) -> int:
    """Run a command line of the application `of`; failures go to stderr as sentences."""
    try:
        result = of(args=argv, prog_name=name, standalone_mode=False)
    except CommandError as error:
        verb = next((word for word in argv if not word.startswith("-")), "")
        print(f"{name} {verb}: {error}", file=sys.stderr)
        return error.status
    except typer.Exit as exit_:
        return exit_.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `| head`: its reader has enough
        sys.stderr.close()
        return Exit.OK
    except Exception as error:
        show = getattr(error, "show", None)  # click's usage errors print their own message
        if show is None:
            raise
        show()
        return int(getattr(error, "exit_code", Exit.USAGE))
    return result if isinstance(result, int) else Exit.OK
