"""The typer application of `kubectl argosy`: its verbs, and how a failure becomes a sentence."""

import sys
from collections.abc import Callable, Iterable

import typer

from argosy_operator.cli.kubectl.completion import completed, grammar
from argosy_operator.cli.kubectl.drain import drain
from argosy_operator.cli.kubectl.exits import CommandError, Exit
from argosy_operator.cli.kubectl.explain import explain
from argosy_operator.cli.kubectl.lint import lint
from argosy_operator.cli.kubectl.render import render
from argosy_operator.cli.kubectl.status import status

NAME = "kubectl argosy"


def application(about: str, verbs: Iterable[Callable[..., object]]) -> typer.Typer:
    """A command line of these verbs, whose failures `invoked` shows."""
    made = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help=about,
    )
    for verb in verbs:
        made.command()(verb)
    return made


VERBS = (status, explain, drain, render, lint)
app = application("See and steer fleets that Argosy serves.", VERBS)


def main(argv: list[str]) -> int:
    """Entry point of `kubectl argosy`; returns the exit status."""
    return invoked(app, argv, NAME)


def complete(argv: list[str]) -> int:
    """Entry point of `kubectl_complete-argosy`: kubectl's shell completion asks it."""
    command = typer.main.get_command(app)
    verbs = getattr(command, "commands", {})
    print(completed({name: grammar(verb) for name, verb in verbs.items()}, argv, completions))
    return Exit.OK


def completions(of: str, where: dict[str, str]) -> list[str]:
    """Names of fleets, or for "pod" of engine pods; none if the cluster does not say."""
    from argosy_operator.cli.kubectl.session import engine_pod_names, fleet_names, names_or_none

    names = engine_pod_names if of == "pod" else fleet_names
    return names_or_none(
        names, where.get("namespace"), where.get("context"), where.get("kubeconfig")
    )


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
