"""Pod addresses and the node's bridge, in the network namespace that the runtime was started in.

A pod has a /32 address of the node's pod CIDR and a default route over the bridge, so that traffic
between pods of one node is routed too and passes kube-proxy's rules. The veth pair ends with the
pod's network namespace; only the bridge has to be removed at the end.
"""

import contextlib
import fcntl
import ipaddress
import socket
import struct
import subprocess
from pathlib import Path

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCBRADDIF = 0x8913, 0x8914, 0x89A2
_IFF_UP = 1


class Network:
    """The addresses of one node's pods. ValueError if the CIDR is too small."""

    def __init__(self, pod_cidr: str) -> None:
        self._cidr = ipaddress.IPv4Network(pod_cidr)
        if self._cidr.num_addresses < 8:
            raise ValueError(f"--pod-cidr {pod_cidr} has no room for pods: use a /24 or larger")
        self.gateway = self._cidr[1]
        self.bridge = f"br{int(self._cidr.network_address):08x}"
        self._used: dict[str, str] = {}  # sandbox id -> address
        self._next = 2

    def open(self) -> None:
        """Make the bridge with the gateway's address and enable routing."""
        # Without an address of its own, a bridge takes the lowest of its ports' and changes it when
        # that port goes. The node's other pods then send to the old one until they ask anew.
        hardware = "0a:58:" + self.gateway.packed.hex(":")
        commands = [
            f"link add {self.bridge} address {hardware} type bridge forward_delay 0",
            f"addr add {self.gateway}/{self._cidr.prefixlen} dev {self.bridge}",
            f"link set {self.bridge} up",
            "link set lo up",
        ]
        result = subprocess.run(
            ["ip", "-force", "-batch", "-"],
            input="\n".join(commands) + "\n",
            text=True,
            capture_output=True,
        )
        errors = [line for line in result.stderr.splitlines() if line.startswith("RTNETLINK")]
        if any("File exists" not in line for line in errors):
            raise OSError(f"the pod bridge {self.bridge} cannot be made: {result.stderr.strip()}")
        for name, value in (
            ("ip_forward", "1"),
            ("conf/all/send_redirects", "0"),
            (f"conf/{self.bridge}/send_redirects", "0"),
        ):
            Path("/proc/sys/net/ipv4", name).write_text(value)

    def close(self) -> None:
        """Remove the bridge."""
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)

    def allocate(self, sandbox: str) -> str:
        """The next free address; addresses are reused as late as possible."""
        taken = set(self._used.values())
        last = self._cidr.num_addresses - 2
        for _ in range(last):
            address = str(self._cidr[self._next])
            self._next = self._next + 1 if self._next < last else 2
            if address not in taken:
                self._used[sandbox] = address
                return address
        raise OSError(f"all pod addresses of {self._cidr} are in use: delete pods or add nodes")

    def release(self, sandbox: str) -> None:
        """Free the pod's address."""
        self._used.pop(sandbox, None)

    def pod_commands(self, sandbox: str, address: str, *, runtime_pid: int) -> str:
        """`ip -batch` input for inside the pod; the pair's other end goes to the runtime."""
        return (
            f"link add eth0 type veth peer name {veth_name(sandbox)} netns {runtime_pid}\n"
            "link set lo up\n"
            "link set eth0 up\n"
            f"addr add {address}/32 dev eth0\n"
            f"route add {self.gateway} dev eth0 scope link\n"
            f"route add default via {self.gateway}\n"
        )

    def attach(self, sandbox: str) -> None:
        """Put the pod's outer interface on the bridge and up, with ioctls: `ip` costs a process."""
        name = veth_name(sandbox)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            bridge = struct.pack("16si", self.bridge.encode(), socket.if_nametoindex(name))
            fcntl.ioctl(control, _SIOCBRADDIF, bridge + bytes(20))
            request = struct.pack("16sh", name.encode(), 0) + bytes(22)
            flags = struct.unpack_from("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
            request = struct.pack("16sh", name.encode(), flags | _IFF_UP) + bytes(22)
            fcntl.ioctl(control, _SIOCSIFFLAGS, request)
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/ipv4/conf/{name}/send_redirects").write_text("0")


def veth_name(sandbox: str) -> str:
    """Name of the pod's outer interface; an interface's name has at most 15 characters."""
    return "ve" + sandbox[:12]
