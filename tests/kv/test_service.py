"""The KV service of an engine: which transport it offers, where it listens, what it forgets."""

import socket

import pytest

from argosy_engine.config import EngineConfig
from argosy_engine.errors import LoadError
from argosy_engine.transfer import service
from argosy_engine.transfer.nixl import has_adapter
from tests.kv.nodes import BLOCK, TextRunner, node

PROMPT = list(range(100, 100 + 4 * BLOCK + 5))
MISSING = "NIXL is not installed (pip install 'argosy[nixl]')"
ENCRYPTED = "NIXL does not encrypt, and --tls-dir asks for it"


def link_of(transport, *, encrypted=False, wire_block_bytes=64, **options):
    """What an engine makes for NIXL: None, or the arguments of its link."""
    config = EngineConfig(
        model="sim:m", served_name="m", role="decode", kv_transport=transport, **options
    )
    runner = TextRunner("m", config)
    object.__setattr__(runner._layout, "wire_block_bytes", wire_block_bytes)
    return service._link(config, runner, encrypted=encrypted)


@pytest.fixture
def machine(monkeypatch):
    """A machine with an RDMA adapter and the package, until a test takes one away."""
    monkeypatch.setattr(service, "has_adapter", lambda: True)
    monkeypatch.setattr(service, "installed", lambda: True)
    monkeypatch.setattr(service, "Link", lambda size, ports: (size, ports))
    return monkeypatch


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("transport", ["auto", "nixl"])
def test_nixl_is_used_where_it_is_there(transport):
    assert link_of(transport) == (64, "")
    assert link_of(transport, pod_ip="10.0.0.1") == (64, "8003-8010"), "the NetworkPolicy's ports"


@pytest.mark.usefixtures("machine")
def test_tcp_is_tcp_whatever_there_is():
    assert link_of("tcp") is None
    assert link_of("tcp", encrypted=True) is None


def test_auto_is_tcp_without_an_adapter_because_nixl_is_slower_there(machine, tmp_path, caplog):
    assert not has_adapter(tmp_path)
    (tmp_path / "uverbs0").touch()
    assert has_adapter(tmp_path)
    machine.setattr(service, "has_adapter", lambda: False)
    with caplog.at_level("INFO"):
        assert link_of("auto") is None
    assert caplog.records == []
    assert link_of("nixl") == (64, ""), "pinned, it needs none"


@pytest.mark.parametrize(("encrypted", "why"), [(False, MISSING), (True, ENCRYPTED)])
def test_an_engine_that_must_use_nixl_does_not_start_where_it_cannot(machine, encrypted, why):
    machine.setattr(service, "installed", lambda: False)
    with pytest.raises(LoadError) as error:
        link_of("nixl", encrypted=encrypted)
    assert error.value.reason == "BadArgument"
    assert error.value.message == f"--kv-transport nixl: {why}; or write --kv-transport auto"


# ------------------------------------------------------------------ the service


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_listens_for_pulls_until_it_ends(role):
    with node(role) as engine:
        port = engine.kv.port
        assert port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
