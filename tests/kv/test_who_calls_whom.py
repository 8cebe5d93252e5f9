"""Who may open a KV connection, whom it means, and what is refused before a prompt is read."""

import datetime
import ssl
import threading

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from argosy_engine.core.handover import patience
from argosy_engine.core.handover.messages import PullDone, PullFailed
from argosy_engine.core.runner import InPlace
from argosy_engine.transfer.wire import Kind, encode_control
from local.cluster.config.pki import issue, make_authority
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import TICKET, liar, puller, read_control

PROMPT = list(range(100, 100 + 40 * BLOCK + 5))
UID = "3f1c-pod"


def only(credential):
    return lambda shown: None if shown == credential else "show a token of this fleet"


async def answered(decode, *candidates):
    client = decode.ask(PROMPT, *candidates)
    await until(lambda: client.end is not None)
    assert (len(client.ids), client.end) == (3, "length")
    return client


async def test_a_decode_engine_shows_its_credential_on_every_connection():
    shown = []

    def authorize(credential):
        shown.append(credential)
        return only("a token")(credential)

    with node("prefill", authorize=authorize) as prefill:
        with node("decode", credential=lambda: "a token") as decode:
            await answered(decode, prefill.address)
        assert isinstance(decode.events[-1], PullDone)
    assert shown == ["a token", "a token"]


@pytest.mark.parametrize("credential", [None, lambda: "another"])
async def test_a_stranger_is_refused_before_its_prompt_is_read(credential):
    with node("prefill", authorize=only("a token")) as prefill:
        with node("decode", credential=credential) as decode:
            client = await answered(decode, prefill.address)
        assert prefill.text_of(PROMPT) == []
    assert client.failed_prefills == ((prefill.address, "unauthorized"),)
    failure = decode.events[-1]
    assert isinstance(failure, PullFailed)
    assert "show a token of this fleet" in failure.message


async def test_a_stranger_with_a_ticket_gets_no_kv():
    with node("prefill", authorize=only("a token")) as prefill:
        for kind in (Kind.PULL, Kind.PREFILL):
            async with puller(prefill.address) as stranger:
                opening = encode_control(Kind.OPEN, {"credential": "", "pod_uid": ""})
                stranger.writer.write(opening + encode_control(kind, {"ticket": TICKET}))
                got, said = await read_control(stranger.reader)
                assert (got, said["reason"]) == (Kind.REFUSED, "unauthorized")


@pytest.mark.parametrize(("meant", "served"), [(UID, True), ("", True), ("of-an-older-pod", False)])
async def test_an_address_that_another_pod_has_now_is_refused(meant, served):
    with node("prefill", pod_uid=UID) as prefill, node("decode") as decode:
        candidate = f"{prefill.address}/{meant}" if meant else prefill.address
        client = await answered(decode, candidate)
    if served:
        assert client.prefill_pod == "prefill-pod"
    else:
        assert client.failed_prefills == ((prefill.address, "wrong_pod"),)
        assert UID in decode.events[-1].message


async def test_engines_of_another_release_refuse_each_other_by_name_and_the_text_comes():
    """A rollout: they are not paired, but a stale address may bring them together."""

    def older(data: bytes) -> bytes:
        return data[:4] + bytes([3]) + data[5:]

    with node("prefill") as prefill:
        async with puller(prefill.address) as peer:
            peer.writer.write(older(encode_control(Kind.PREFILL, {})))
            got, said = await read_control(peer.reader)
            assert (got, said["reason"]) == (Kind.REFUSED, "protocol")
            assert "version 3 of the KV protocol, not 4" in said["message"]
    words = older(encode_control(Kind.REFUSED, {"reason": "protocol", "message": "version 3"}))
    with node("decode") as decode:
        async with liar(words) as it:
            client = await answered(decode, it.address)
            assert client.failed_prefills == ((it.address, "version"),)
    assert "must be of the same release" in decode.events[-1].message
    assert decode.metric("argosy_kv_transfer_failures_total", cause="refused") == 1


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """(for servers, for callers): each side shows a certificate and checks the other's."""
    folder = tmp_path_factory.mktemp("tls")
    now = datetime.datetime.now(datetime.UTC)
    authority = make_authority(now)
    certificate, key = issue(authority, "engine", "", ["127.0.0.1"], now)
    (folder / "crt").write_bytes(certificate)
    (folder / "key").write_bytes(key)
    root = authority.certificate.public_bytes(Encoding.PEM).decode()

    def context(side):
        made = ssl.SSLContext(side)
        made.load_cert_chain(folder / "crt", folder / "key")
        made.load_verify_locations(cadata=root)
        made.verify_mode = ssl.CERT_REQUIRED
        return made

    return context(ssl.PROTOCOL_TLS_SERVER), context(ssl.PROTOCOL_TLS_CLIENT)


async def test_kv_travels_over_tls_with_certificates_on_both_sides(tls):
    server, caller = tls
    with node("prefill", server_ssl=server) as prefill:
        with node("decode", client_ssl=lambda: caller) as decode:
            await answered(decode, prefill.address)
        assert isinstance(decode.events[-1], PullDone)
        assert decode.text_of(PROMPT) == PROMPT[: 40 * BLOCK]


async def test_an_engine_without_tls_gets_nothing_from_one_with_it(tls):
    server, caller = tls
    with node("prefill", server_ssl=server) as secured, node("prefill") as plain:
        with node("decode") as decode:
            await answered(decode, secured.address)
            assert isinstance(decode.events[-1], PullFailed)
        with node("decode", client_ssl=lambda: caller) as decode:
            await answered(decode, plain.address)
            assert isinstance(decode.events[-1], PullFailed)


async def test_over_tls_too_a_peer_that_does_not_read_is_cut_off(monkeypatch, tls):
    """The time of the minimum rate is over, and its blocks are free."""
    monkeypatch.setattr(patience, "GRACE_S", 0.2)
    server, caller = tls
    with node("prefill", server_ssl=server) as secured:
        secured.runner.outgoing = lambda _: InPlace([memoryview(bytes(48 << 20))])
        async with puller(secured.address, caller) as peer:
            await peer.prefill(PROMPT, secured.runner.kv_layout().fingerprint)
            key = secured.loop.find_lease(peer.ticket)
            _, writer = await peer.open_data()
            await peer.ask_for(writer, 0, peer.n_blocks)
            await until(lambda: secured.loop.leases._table._leases[key].sends, within_s=20)
            await until(lambda: not secured.loop.leases._table._leases[key].sends, within_s=20)
            await peer.tell(Kind.RELEASE)


async def test_over_tls_copies_of_a_device_are_waited_for_beside_the_event_loop(tls):
    server, caller = tls
    with (
        node("prefill", server_ssl=server) as secured,
        node("decode", client_ssl=lambda: caller) as decode,
    ):
        outgoing, waited_in = secured.runner.outgoing, []

        class Copies:
            def __init__(self, block_ids):
                self.views = ()
                self._block_ids = block_ids

            def wait(self):
                waited_in.append(threading.current_thread().name)
                self.views = outgoing(self._block_ids).views

        secured.runner.outgoing = Copies
        client = decode.ask(PROMPT, secured.address)
        await until(lambda: client.end is not None)
        assert decode.text_of(PROMPT) == PROMPT[: len(PROMPT) // BLOCK * BLOCK]
    assert isinstance(decode.events[-1], PullDone)
    assert waited_in
    assert all(name.startswith("kv-send") for name in waited_in)
