"""Writes docs/reference/kubectl.md: verbs, flags and exit statuses of `kubectl argosy`."""

import typer

from argosy_operator.cli.kubectl.app import Flag, app, grammar
from argosy_operator.cli.kubectl.command import Exit

INTRODUCTION = """\
A plug-in of kubectl: any program `kubectl-argosy` on the PATH is `kubectl argosy`. `pipx install`
or `uv tool install` puts it there, from a checkout of this repository or from a wheel:

```sh
pipx install '.[operator]'          # or: uv tool install '.[operator]'
kubectl argosy status -A
```

`make krew RELEASES=https://…` writes an archive and krew's manifest for it into `build/krew`, with
the address where the archive will be; `kubectl krew install --manifest=argosy.yaml
--archive=argosy-kubectl-VERSION.tar.gz` takes both. The archive holds a wheel, the pinned list of
its dependencies and a launcher, which installs both into `~/.cache/argosy` at its first call, from
the package index that pip knows. It is not in krew's index, and krew itself has not been tried: the
manifest is compared with krew's guide, and the archive was unpacked and run without krew.

It needs Python 3.11 or newer. It uses the kubeconfig that kubectl uses, and no rights beyond the
user's own: `get` and `list` of servingdeployments, deployments, replicasets and pods; `drain`
also `get` of `pods/proxy`, `patch` of pods and, with `--delete`, `delete` of pods. `import`
`get` of deployments. `render`, `lint` and `import -f` need no cluster. `kubectl argosy --version`
prints the version, as every command of Argosy does.

The shell completes verbs, flags and, where a cluster answers within two seconds, names of fleets
and for `drain` of engine pods, if kubectl's own completion is set up (`kubectl completion bash`,
`zsh` or `fish`): kubectl runs `kubectl_complete-argosy`, which is installed beside the plug-in.
"""
NOTES = {
    "explain": (
        "The last lines say what would change the number: the rule that binds and what a person "
        "can do about it, and the rates of requests from which on the scaling law answers another "
        "number. They come from the law itself, asked again with the record of the decision under "
        "steady arrivals without a queue, so that a rate is about what the fleet will see. "
        "Settings bound what follows: `max` and a GPU budget still hold."
    ),
    "drain": (
        "The pod gets the annotation that the operator writes itself: gateways choose it no more, "
        "and its answers end whole. It keeps its mark until it is deleted or taken back. The "
        "operator does not count it as serving, and removes it first when the role needs fewer "
        "pods. Gateway pods drain by themselves when they are deleted."
    ),
    "render": (
        "It is the operator's own first plan for a fleet that does not exist yet, with replicas "
        "at their minimum. Owner references need the fleet's uid and are left out; so is the "
        "ConfigMap of who may call engines, which needs the cluster's keys. Engines of a model of "
        "`hf://` or `s3://` are left out, too, with a line on stderr: the commit that the Job "
        "finds is part of their revision. `--values` takes the files that helm gets: `images` and "
        "`pods` are the operator's defaults, and no other value changes a fleet's objects."
    ),
    "lint": (
        "Errors are what the API server refuses, with its sentences: fields that do not exist, "
        "types, bounds, items of a list with one name, and rules between fields; and a request "
        "above its limit, which it refuses when the pods are made. Warnings are an SLO below the "
        "engine's floor, a simulated engine that does not exist, a policy without an SLO, and a "
        "range in which the SLO can change nothing. Each line is "
        "`FILE:LINE: error: …`, as compilers print it. Each FILE is read as `kubectl apply -f` "
        "reads it: it may have several documents, be a folder, of which the `.yaml`, `.yml` and "
        "`.json` files are read, or hold a list of objects, such as that of `kubectl get sd -A -o "
        "yaml | kubectl argosy lint -`. Objects of other kinds are left alone."
    ),
    "import": (
        "It reads the container that runs `vllm serve`, as a command, as a shell's line or as the "
        "entrypoint of a vllm-openai image, from the cluster or with `-f` from a manifest: "
        "arguments, variables, resources, volumes and where its pods run. The comments above the "
        "fleet say what was left out and what is left to decide, such as the SLO, which a "
        "Deployment has not."
    ),
}
"""What a verb's help is too short for."""


def page(note: str) -> str:
    """The whole page; `note` says that it is generated."""
    parts = ["# kubectl argosy", note, INTRODUCTION]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    verbs = {name: grammar(command) for name, command in commands.items()}
    verbs |= {f"{of} {name}": verb for of in list(verbs) for name, verb in verbs[of].verbs.items()}
    for name, verb in verbs.items():
        if verb.verbs:
            continue
        argument = {
            "name": "NAME",
            "pod": "POD",
            "files": "FILE…",
            "deployment": "deployment/NAME",
        }[verb.argument]
        parts.append(f"## {name}\n")
        parts.append(f"`kubectl argosy {name} {f'[{argument}]' if verb.optional else argument}`\n")
        parts.append(f"{verb.help}\n")
        if name in NOTES:
            parts.append(f"{NOTES[name]}\n")
        parts.append("| flag | what it does |\n|---|---|")
        parts += [_row(flag) for flag in verb.flags if "--help" not in flag.names]
        parts.append("")
    parts.append("## Exit statuses\n\n| status | meaning |\n|---|---|")
    parts += [f"| {int(status)} | {status.meaning} |" for status in Exit]
    return "\n".join(parts) + "\n"


def _row(flag: Flag) -> str:
    values = " " + "\\|".join(flag.takes) if flag.takes else ""
    names = ", ".join(f"`{name}`" for name in flag.names)
    return f"| {names}{values} | {flag.help} |"
