"""`kubectl argosy lint FILE…`: what the API server would refuse, without one."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from argosy_operator.cli.kubectl.documents import Document, documents
from argosy_operator.cli.kubectl.exits import CommandError, Exit
from argosy_operator.cli.kubectl.findings import findings
from argosy_operator.cli.kubectl.options import Files
from argosy_operator.cli.kubectl.printed import data


def lint(
    files: Files,
    output: Annotated[
        Literal["text", "json", "yaml"], typer.Option("-o", "--output", help="text, json or yaml.")
    ] = "text",
    strict: Annotated[bool, typer.Option(help="A warning is an error, too.")] = False,
) -> int:
    """Check manifests of ServingDeployments without a cluster. Exits 1 if one has an error."""
    read = read_documents(files)
    found = [one for document in read for one in findings(document)]
    errors = sum(one.level == "error" for one in found)
    if output != "text":
        print(data([asdict(one) for one in found], output))
    else:
        for one in found:
            print(one.text())
        fleets = sum(document.is_fleet for document in read)
        print(f"{fleets} fleets, {errors} errors, {len(found) - errors} warnings")
    return Exit.FAILED if errors or (strict and found) else Exit.OK


def read_documents(files: list[str]) -> list[Document]:
    """Read all documents of the files; "-" is standard input.

    Raises CommandError for a file that cannot be read, and if none of them holds a fleet or a
    document that cannot be read.
    """
    read = list[Document]()
    for file in files:
        try:
            raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
            read += documents(raw.decode(), file)
        except OSError as error:
            raise CommandError(f"cannot read {file}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise CommandError(f"{file} is no text in UTF-8") from error
    if not any(document.is_fleet or document.problem for document in read):
        raise CommandError(f"there is no ServingDeployment in {', '.join(files)}")
    return read
