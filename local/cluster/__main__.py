"""`python -m local.cluster up|down|status|publish|kubeconfig|logs|build|preflight|clean-cache`."""

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from local.cluster import build, fetch, preflight
from local.cluster.errors import OneMachineError
from local.cluster.layout import DEFAULT_NAME, default_state_dir

if TYPE_CHECKING:
    from local.cluster.cluster import Cluster


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m local.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--name", default=DEFAULT_NAME, help="name of the cluster")
        command.add_argument(
            "--state-dir",
            type=Path,
            help="folder of its files; default: ~/.local/state/argosy/NAME",
        )
        return command

    up = add("up", "start a cluster and return when it is Ready")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--gpus-per-node", type=int, default=8)
    up.add_argument(
        "--images",
        type=Path,
        help="JSON of further images; local/cluster/config/images.json is the model. Or a folder "
        "of build/release, whose images run in place of the checkout's programs; built: the newest",
    )
    up.add_argument("--api-port", type=int, default=0, help="on 127.0.0.1; default: a free one")
    up.add_argument("--json", action="store_true", help="print the result as JSON")
    add("down", "stop it; no process, mount or network namespace is left")
    add("status", "whether it is Ready, and its programs")
    add("kubeconfig", "print the path of the kubeconfig")
    publish = add("publish", "serve a Service on 127.0.0.1")
    publish.add_argument("service", metavar="NAMESPACE/SERVICE:PORT")
    publish.add_argument("--host-port", type=int, default=0, help="default: a free one")
    logs = add("logs", "follow the components' logs")
    logs.add_argument("component", nargs="*", help="kubelet.node1, runtime.node1, …; default: all")
    compile_ = add("build", "build the binaries into the cache")
    compile_.add_argument("--stage", choices=(*build.STAGES, "all"), default="all")
    add("preflight", "fetch what this machine lacks; name what cannot be fetched")
    clean = add("clean-cache", "show the size of the cache and remove it")
    clean.add_argument("--yes", action="store_true", help="do not ask")
    return parser


def _cluster(asked: argparse.Namespace) -> "Cluster":
    """Imported late: fetch, preflight and build run without the environment's packages."""
    from local.cluster.cluster import Cluster

    return Cluster(asked.name, state_dir=asked.state_dir)


def up(asked: argparse.Namespace) -> int:
    """Fetch and build what is missing, then start a cluster."""
    from local.cluster.cluster import Cluster

    images = asked.images
    if images == Path("built"):
        from local.cluster.config.released import find_release

        images = find_release()
    if preflight.main(quiet=True):
        return 1
    build.build("kube")
    cluster = Cluster(
        asked.name,
        nodes=asked.nodes,
        gpus_per_node=asked.gpus_per_node,
        state_dir=asked.state_dir,
        images_file=images,
        api_port=asked.api_port,
    )
    started = cluster.start(on_stage=lambda stage, at_s: _say(f"{at_s:6.2f} s  {stage}"))
    if asked.json:
        print(json.dumps(dataclasses.asdict(started)))
        return 0
    print(
        f"ready after {started.ready_s:.1f} s: {asked.nodes} nodes, {asked.gpus_per_node} GPUs each"
    )
    print(f"export KUBECONFIG={started.kubeconfig}")
    return 0


def down(asked: argparse.Namespace) -> int:
    """Stop it; an error if a process is left."""
    _cluster(asked).stop()
    _say("stopped; no process, mount or network namespace is left")
    return 0


def status(asked: argparse.Namespace) -> int:
    """Exit status 1 if it does not run."""
    cluster = _cluster(asked)
    if not cluster.is_running():
        print(f"cluster {asked.name} does not run: python -m local.cluster up --name {asked.name}")
        return 1
    found = cluster.status()
    print(f"{'ready' if found['ready'] else 'starting'}; KUBECONFIG={cluster.kubeconfig}")
    for name, program in sorted(found["programs"].items()):
        print(f"  {name:28} {'up' if program['pid'] else 'down':5} starts {program['starts']}")
    return 0


def kubeconfig(asked: argparse.Namespace) -> int:
    """Print the path, also before the start."""
    print(_cluster(asked).kubeconfig)
    return 0


def publish(asked: argparse.Namespace) -> int:
    """Print the URL on 127.0.0.1."""
    namespace, _, rest = asked.service.rpartition("/")
    service, _, port = rest.partition(":")
    if not port.isdigit():
        _say(f"{asked.service}: write NAMESPACE/SERVICE:PORT, e.g. demo/chat:80")
        return 2
    found = _cluster(asked).host_port(service, int(port), namespace or "default", asked.host_port)
    print(f"http://127.0.0.1:{found}")
    return 0


def logs(asked: argparse.Namespace) -> int:
    """Run `tail -F` until interrupted."""
    folder = (asked.state_dir or default_state_dir(asked.name)) / "logs"
    files = [path for name in asked.component or ["*"] for path in sorted(folder.glob(f"{name}*"))]
    if not files:
        names = ", ".join(sorted(path.name for path in folder.glob("*")))
        _say(f"no such log; the logs are: {names or 'none'}")
        return 1
    return subprocess.call(["tail", "-n", "20", "-F", *map(str, files)])


def clean_cache(asked: argparse.Namespace) -> int:
    """Remove the cache after a question; refuse a folder that holds other files."""
    root = fetch.cache_root()
    if not root.exists():
        print(f"{root} does not exist: nothing to remove")
        return 0
    strange = sorted(path.name for path in root.iterdir() if not build.is_ours(path.name))
    if strange:
        _say(
            f"{root} holds files that are not Argosy's ({', '.join(strange[:5])}): nothing was "
            "removed; move them, or correct ARGOSY_CACHE"
        )
        return 1
    size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())
    print(f"{root}: {size / 1e6:.0f} MB (binaries, Go toolchain, weights)")
    print("Go's own caches serve other projects too; to empty them: go clean -cache -modcache")
    if not asked.yes and input("remove it? [y/N] ").strip().lower() != "y":
        return 1
    shutil.rmtree(root)
    print("removed")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run one command; exit status 1 with a sentence if it failed."""
    asked = _parser().parse_args()
    commands = {
        "up": up,
        "down": down,
        "status": status,
        "kubeconfig": kubeconfig,
        "publish": publish,
        "logs": logs,
        "build": lambda asked: build.main(["--stage", asked.stage]),
        "preflight": lambda _: preflight.main(),
        "clean-cache": clean_cache,
    }
    try:
        return commands[asked.command](asked)
    except KeyboardInterrupt:
        return 130
    except (OneMachineError, ValueError) as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
