"""`python -m local.cluster.cri`: the container runtime of one node of the one-machine cluster.

The supervisor starts one for each node, inside the node's mount namespace and the cluster's network
namespace, as root or as uid 0 of a user namespace. On SIGTERM it ends with all that it started.
"""

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from local.cluster.cri.fork.spawner import Spawner
from local.cluster.cri.images import Images
from local.cluster.cri.network import Network
from local.cluster.cri.pods import Pods
from local.cluster.cri.server import Service, handlers

_log = logging.getLogger("cri")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="local.cluster.cri", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="CRI endpoint to listen on")
    parser.add_argument("--node", required=True, help="node name, the hostname of hostNetwork pods")
    parser.add_argument("--root", type=Path, required=True, help="state and layers, on a tmpfs")
    parser.add_argument("--pod-cidr", required=True, help="addresses of this node's pods")
    parser.add_argument("--images", type=Path, required=True, help="images file (JSON)")
    parser.add_argument("--log", type=Path, required=True, help="log file of the runtime")
    parser.add_argument("--rootless", action="store_true", help="uid 0 of a user namespace")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> int:
    stop = asyncio.Event()
    lost = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def on_lost() -> None:
        _log.error("the fork server has died, and every container with it")
        lost.set()
        stop.set()

    network = Network(arguments.pod_cidr)
    network.open()
    spawner = Spawner(on_lost=on_lost)
    pods = Pods(
        node=arguments.node,
        root=arguments.root.resolve(),
        images=Images(arguments.images),
        network=network,
        spawner=spawner,
        rootless=arguments.rootless,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers(Service(pods, root=str(arguments.root.resolve()))))
    arguments.socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{arguments.socket}")
    await server.start()
    _log.info("node %s serves the CRI at %s", arguments.node, arguments.socket)
    await stop.wait()
    await server.stop(0.2)
    if not lost.is_set():
        await pods.close()
        spawner.close()
    network.close()
    arguments.socket.unlink(missing_ok=True)
    return 1 if lost.is_set() else 0


def main() -> int:
    """Serve the CRI until SIGTERM; exit status 1 if the fork server died."""
    arguments = _arguments()
    logging.basicConfig(
        filename=arguments.log, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    if shutil.which("ip") is None:
        print("the runtime needs `ip`: install iproute2", file=sys.stderr)
        return 2
    arguments.root.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_serve(arguments))


if __name__ == "__main__":
    sys.exit(main())
