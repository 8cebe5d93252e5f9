"""Ports that are given to processes of suites and tests."""

import socket
from concurrent.futures import ThreadPoolExecutor

from argosy_bench import ports
from argosy_bench.ports import free_port, free_ports


def test_callers_side_by_side_are_never_given_the_same_port():
    with ThreadPoolExecutor(8) as callers:
        given = [port for some in callers.map(free_ports, [3] * 200) for port in some]
    assert len(set(given)) == len(given)


def test_a_port_that_is_bound_is_left_out(monkeypatch, tmp_path):
    taken = free_port()
    monkeypatch.setattr(ports, "_TURN", tmp_path / "turn")
    ports._TURN.write_text(str(taken))
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in free_ports(2)
