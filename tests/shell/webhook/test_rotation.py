"""The API server knows, at each moment, the certificate that the webhook shows."""

import asyncio
import datetime as dt
import ssl
from contextlib import suppress

import pytest
from aiohttp import ClientSession, TCPConnector, web
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.actions import ErrorKind
from argosy_operator.ports.protocols import ClusterError
from argosy_operator.shell.webhook.certificates import MOST_OF_OTHERS, bundle, new_certificate
from argosy_operator.shell.webhook.rotation import LOOK_AGAIN_S, STUCK_S, Rotation
from argosy_operator.shell.webhook.serve import PATH, application

HOST = "localhost"
START = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)
WEEK = dt.timedelta(days=7)


class OneBundle:
    """The bundle of an API server: writes on condition of the version."""

    def __init__(self) -> None:
        self.bundle, self.version, self.writes = b"", 1, 0
        self.away = False

    async def read(self) -> tuple[bytes, str]:
        if self.away:
            raise ClusterError(ErrorKind.TRANSPORT, "get", "no answer")
        return self.bundle, str(self.version)

    async def write(self, bundle: bytes, version: str) -> None:
        if version != str(self.version):
            raise ClusterError(ErrorKind.CONFLICT, "patch", "another version")
        self.bundle, self.version, self.writes = bundle, self.version + 1, self.writes + 1


class World:
    """A webhook whose clock is turned by hand."""

    def __init__(self, lifetime: dt.timedelta = WEEK) -> None:
        self.api, self.now = OneBundle(), dt.datetime.now(dt.UTC)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.rotation = self.webhook(lifetime)

    def webhook(self, lifetime: dt.timedelta = WEEK) -> Rotation:
        return Rotation(self.api, HOST, lifetime, self.context, lambda: self.now)

    def shown(self) -> x509.Certificate:
        """What a client sees, if the bundle of this moment vouches for it. Raises
        VerificationError if it does not."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
        theirs = client.wrap_bio(inward, outward, server_hostname=HOST)
        ours = self.context.wrap_bio(outward, inward, server_side=True)
        for _ in range(3):
            for side in (theirs, ours):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        found = x509.load_der_x509_certificate(theirs.getpeercert(binary_form=True) or b"")
        store = Store(x509.load_pem_x509_certificates(self.api.bundle))
        verifier = PolicyBuilder().store(store).time(self.now.replace(tzinfo=None))
        verifier.build_server_verifier(x509.DNSName(HOST)).verify(found, [])
        return found


async def test_after_the_first_look_the_api_server_knows_the_certificate() -> None:
    world = World()
    assert not world.rotation.ready
    await world.rotation.look()
    assert world.rotation.ready
    names = world.shown().extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [HOST]


async def test_further_looks_write_nothing() -> None:
    world = World()
    for _ in range(5):
        await world.rotation.look()
    assert world.api.writes == 1


async def test_a_certificate_is_followed_by_the_next_and_is_known_at_each_moment() -> None:
    world = World()
    serials, step = set(), dt.timedelta(hours=7)
    for _ in range(100):
        await world.rotation.look()
        found = world.shown()
        assert found.not_valid_after_utc > world.now
        serials.add(found.serial_number)
        world.now += step
    # Made after 84 hours each, shown a look later: at 91, 175, … 679 of 693 hours.
    assert len(serials) == 9
    assert len(x509.load_pem_x509_certificates(world.api.bundle)) <= MOST_OF_OTHERS + 2


@given(st.lists(st.sampled_from(["look", "hour", "day", "new", "emptied", "junk"]), max_size=8))
def test_whatever_happens_some_looks_later_the_api_server_knows_it(events: list[str]) -> None:
    world = World()

    async def play() -> None:
        rotation = world.rotation
        for event in events:
            match event:
                case "look":
                    await rotation.look()
                case "hour" | "day":
                    world.now += dt.timedelta(hours=1 if event == "hour" else 24)
                case "new":
                    rotation = world.webhook()
                case "emptied":
                    world.api.bundle = b""
                case "junk":
                    world.api.bundle = b"-----BEGIN CERTIFICATE-----\nAA==\n"
        for _ in range(3):
            await rotation.look()
        before = world.api.writes
        await rotation.look()
        assert world.api.writes == before
        world.shown()
        held = x509.load_pem_x509_certificates(world.api.bundle)
        assert len(held) <= MOST_OF_OTHERS + 2

    asyncio.run(play())


async def test_a_process_that_takes_over_leaves_the_one_before_known() -> None:
    world = World()
    await world.rotation.look()
    before = world.api.bundle
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    await Rotation(world.api, HOST, WEEK, other, lambda: world.now).look()
    assert before in world.api.bundle
    world.shown()


async def test_a_bundle_that_another_wrote_first_is_not_overwritten_blindly() -> None:
    world = World()
    read = world.api.read

    async def then_changed() -> tuple[bytes, str]:
        found = await read()
        world.api.version += 1
        return found

    world.api.read = then_changed  # type: ignore[method-assign]
    with pytest.raises(ClusterError):
        await world.rotation.look()
    assert world.api.bundle == b""
    assert not world.rotation.ready


async def test_while_the_api_server_is_away_the_process_goes_on() -> None:
    world = World()
    world.api.away = True
    running = asyncio.create_task(world.rotation.run())
    await asyncio.sleep(0.05)
    assert not running.done()
    assert world.rotation.stuck() is None
    running.cancel()


async def test_a_process_that_looks_no_more_should_be_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    monkeypatch.setattr("argosy_operator.shell.webhook.rotation.STUCK_S", -1.0)
    assert "no look at the bundle" in str(world.rotation.stuck())
    assert STUCK_S > 3 * LOOK_AGAIN_S


def test_a_bundle_keeps_the_newest_of_others_that_have_not_ended() -> None:
    made = [new_certificate(HOST, START + n * dt.timedelta(hours=1), WEEK) for n in range(9)]
    held = b"".join(one.authority for one in made)
    own = new_certificate(HOST, START, WEEK).authority
    kept = bundle(held, [own], START + dt.timedelta(days=1))
    assert own in kept
    assert [one.authority in kept for one in made] == [False] * 5 + [True] * 4
    later = START + WEEK + dt.timedelta(hours=6.5)
    assert [one.authority in bundle(held, [own], later) for one in made] == [False] * 7 + [True] * 2


async def test_the_server_answers_reviews_over_tls_and_names_what_is_none() -> None:
    world = World()
    await world.rotation.look()
    runner = web.AppRunner(application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=world.context).start()
    port = runner.addresses[0][1]
    trust = ssl.create_default_context(cadata=world.api.bundle.decode())
    request = {"uid": "u", "operation": "CREATE", "object": {}}
    try:
        async with ClientSession(connector=TCPConnector(ssl=trust)) as session:
            url = f"https://{HOST}:{port}{PATH}"
            async with session.post(url, json={"request": request}) as answer:
                assert (await answer.json())["response"] == {"uid": "u", "allowed": True}
            for body in ("", "{", "[]", "[" * 100_000):
                async with session.post(url, data=body) as answer:
                    assert answer.status == 400
    finally:
        await runner.cleanup()
