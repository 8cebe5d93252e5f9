"""What proves a caller, what does not, and how keys change under way."""

import base64
import hmac
import json
import logging

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.transfer.mounted_file import FileError, TokenFile
from argosy_engine.transfer.verifier import LEEWAY_S, Verifier, parse_peers
from tests.engine.trust.tokens import (
    AUDIENCE,
    CALLERS,
    ENGINE,
    GATEWAY,
    OPERATOR,
    POD,
    Signer,
    peers,
    write,
)

SIGNER = Signer("one")
NOW = 1_000_000


class Clock:
    now = float(NOW)

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def refused():
    return []


@pytest.fixture
def verifier(tmp_path, clock, refused):
    file = write(tmp_path / "peers.json", peers(SIGNER))
    return Verifier(file, clock=clock, on_refused=lambda *what: refused.append(what))


def token(account=GATEWAY, signer=SIGNER, **claims):
    return signer.token(account, **{"iat": NOW, "nbf": NOW, "exp": NOW + 600, **claims})


def reason(verifier, shown, port="api"):
    unproven = verifier.check(shown, port)
    return unproven and unproven.reason


@pytest.mark.parametrize(
    ("account", "port"), [(GATEWAY, "api"), (ENGINE, "kv"), (OPERATOR, "admin")]
)
def test_each_port_takes_its_own_callers_and_no_others(verifier, refused, account, port):
    assert verifier.check(token(account), port) is None
    assert refused == []
    for other in {"api", "kv", "admin"} - {port}:
        assert reason(verifier, token(account), other) == "account"


@pytest.mark.parametrize(
    ("shown", "why", "says"),
    [
        pytest.param(None, "missing", "no token was shown", id="none"),
        pytest.param("", "missing", "no token was shown", id="empty"),
        pytest.param("abc", "malformed", "the token cannot be read: ", id="no JWT"),
        pytest.param("a" * 8193, "malformed", "the token is longer than 8192 bytes", id="too long"),
        pytest.param("ä.ö.ü", "malformed", "the token cannot be read: ", id="not ASCII"),
        pytest.param(
            token(signer=Signer("two")), "key", "the cluster has no key 'two'", id="unknown key"
        ),
        pytest.param(
            token(signer=Signer("one")),
            "signature",
            "the token's signature is wrong",
            id="another key of that name",
        ),
        pytest.param(
            token()[:-8] + "AAAAAAAA",
            "signature",
            "the token's signature is wrong",
            id="changed signature",
        ),
        pytest.param(
            token(iss="https://elsewhere"),
            "issuer",
            "the token is not of the cluster https://kubernetes.default.svc",
            id="another cluster",
        ),
        pytest.param(
            token(aud=["argosy.dev/ns/other"]),
            "audience",
            "the token is for another audience",
            id="another fleet",
        ),
        pytest.param(
            token(aud=["https://kubernetes.default.svc"]),
            "audience",
            "the token is for another audience",
            id="API server",
        ),
        pytest.param(token(aud=None), "malformed", "the token cannot be read: ", id="no audience"),
        pytest.param(token(exp=None), "malformed", "the token cannot be read: ", id="no end"),
        pytest.param(token(sub=None), "malformed", "the token cannot be read: ", id="no account"),
        pytest.param(token(iss=None), "malformed", "the token cannot be read: ", id="no issuer"),
        pytest.param(
            token(**{"kubernetes.io": None}),
            "pod",
            "the token is bound to no pod",
            id="no Kubernetes claims",
        ),
        pytest.param(
            token(**{"kubernetes.io": {"namespace": "ns"}}),
            "pod",
            "the token is bound to no pod",
            id="bound to no pod",
        ),
        pytest.param(
            token(**{"kubernetes.io": {"pod": {"uid": ""}}}),
            "pod",
            "the token is bound to no pod",
            id="no uid",
        ),
        pytest.param(
            token(**{"kubernetes.io": {"pod": 5}}),
            "pod",
            "the token is bound to no pod",
            id="pod is a number",
        ),
        pytest.param(
            token(OPERATOR),
            "account",
            "system:serviceaccount:argosy-system:argosy may not call this port",
            id="an account of another port",
        ),
        pytest.param(
            token(exp="soon"), "malformed", "a time of the token is no number", id="no time"
        ),
        pytest.param(
            token(nbf=10**400), "malformed", "a time of the token is no number", id="a huge time"
        ),
        pytest.param(
            token(exp=NOW - 60), "time", "the token has expired, or is not valid yet", id="old"
        ),
        pytest.param(
            token(exp=[1]), "malformed", "a time of the token is no number", id="a list as time"
        ),
        pytest.param(
            token(signer=Signer("one")).encode(),
            "signature",
            "the token's signature is wrong",
            id="bytes",
        ),
        pytest.param(
            "\ud800.b.c", "malformed", "the token cannot be read: ", id="half a character"
        ),
        pytest.param(
            token("system:serviceaccount:other:chat-gateway"),
            "account",
            "system:serviceaccount:other:chat-gateway may not call this port",
            id="another namespace",
        ),
    ],
)
def test_what_proves_nothing_is_refused_by_name_counted_and_told_what_to_show(
    verifier, refused, shown, why, says
):
    unproven = verifier.check(shown, "api")
    assert unproven.reason == why
    assert refused == [("api", why)]
    assert unproven.message.startswith(says)
    assert unproven.message.endswith(
        f". Show a service-account token of {GATEWAY} for the audience {AUDIENCE}, "
        "as the kubelet mounts it into that account's pods"
    )


@pytest.mark.parametrize(("length", "words"), [(8192, "cannot be read"), (8193, "longer than")])
def test_a_token_of_8192_bytes_is_read_and_a_longer_one_is_not(verifier, length, words):
    assert words in verifier.check("a" * length, "api").message


def part(value):
    """One part of a JWT."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_a_token_that_signs_itself_with_the_public_key_is_refused(verifier):
    """The attack on libraries that let the token choose between signature and shared secret."""
    secret = SIGNER.private.public_key().public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    signed = f"{part({'alg': 'HS256', 'kid': 'one'})}.{token().split('.')[1]}"
    forged = f"{signed}.{part(hmac.digest(secret, signed.encode(), 'sha256'))}"
    unsigned = jwt.encode({"sub": GATEWAY}, None, "none", headers={"kid": "one"})
    assert reason(verifier, forged) == "signature"
    assert reason(verifier, unsigned) == "signature"


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (NOW - LEEWAY_S - 1, "time"),
        (NOW - LEEWAY_S, None),
        (NOW + 600 + LEEWAY_S - 1, None),
        (NOW + 600 + LEEWAY_S, "time"),
    ],
)
def test_a_token_counts_from_its_begin_to_its_end_with_a_minute_for_clocks(
    verifier, clock, at, why
):
    clock.now = NOW
    assert verifier.check(token(), "api") is None  # known from now on: its time counts all the same
    clock.now = at
    assert reason(verifier, token()) == why


def test_a_key_of_an_algorithm_that_no_api_server_signs_with_proves_nothing(tmp_path):
    """The cluster publishes it, for something else than service accounts."""

    class Pss(Signer):
        @property
        def public(self):
            return {**super().public, "alg": "PS256"}

        def token(self, account=GATEWAY, **claims):
            said = jwt.decode(super().token(account), options={"verify_signature": False})
            return jwt.encode({**said, **claims}, self.private, "PS256", headers={"kid": self.kid})

    signer = Pss("one")
    file = write(tmp_path / "peers.json", peers(signer))
    assert reason(Verifier(file), signer.token()) == "signature"


def test_a_known_token_is_not_verified_again_and_an_unknown_one_is(verifier, monkeypatch):
    verified = []
    decode = jwt.decode
    monkeypatch.setattr(jwt, "decode", lambda *a, **k: verified.append(1) or decode(*a, **k))
    one, other = token(), token(nbf=NOW - 5)
    for shown in (one, one, one.encode(), other, one, other):
        assert verifier.check(shown, "api") is None
    assert len(verified) == 2
    assert reason(verifier, one, "kv") == "account"
    assert len(verified) == 2


def test_while_the_cluster_changes_its_key_both_count_and_then_only_the_new_one(tmp_path, verifier):
    new = Signer("new", "ES256")
    of_old, of_new = token(), token(signer=new)
    assert (reason(verifier, of_old), reason(verifier, of_new)) == (None, "key")
    write(tmp_path / "peers.json", peers(SIGNER, new))
    assert (reason(verifier, of_old), reason(verifier, of_new)) == (None, None)
    write(tmp_path / "peers.json", peers(new))
    assert (reason(verifier, of_old), reason(verifier, of_new)) == ("key", None)


def test_nobody_is_refused_before_the_operator_requires_a_proof(tmp_path, verifier, refused):
    assert verifier.required
    write(tmp_path / "peers.json", peers(SIGNER, required=False))
    assert not verifier.required
    assert (verifier.check(None, "api"), verifier.check("abc", "kv")) == (None, None)
    assert refused == []


@pytest.mark.parametrize("content", ["{", "{}", ""])
def test_an_unusable_new_file_changes_nothing_and_is_reported_once(
    tmp_path, verifier, caplog, content
):
    write(tmp_path / "peers.json", content)
    with caplog.at_level(logging.ERROR):
        assert reason(verifier, token()) is None
        assert reason(verifier, None) == "missing"
    assert len([r for r in caplog.records if "stays in force" in r.message]) == 1


def test_a_file_that_is_gone_changes_nothing_until_it_is_back(tmp_path, verifier):
    (tmp_path / "peers.json").unlink()
    assert (reason(verifier, token()), reason(verifier, None)) == (None, "missing")
    write(tmp_path / "peers.json", peers(SIGNER, callers={"kv": [GATEWAY]}))
    assert (reason(verifier, token()), reason(verifier, token(), "kv")) == ("account", None)


def test_an_engine_without_a_usable_file_does_not_start(tmp_path):
    with pytest.raises(FileError, match=r"peers\.json: No such file"):
        Verifier(tmp_path / "peers.json")
    with pytest.raises(FileError, match=r"keys must hold at least one"):
        Verifier(write(tmp_path / "peers.json", peers()))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version must be 1, got 2"),
        ({"required": 1}, "required must be true or false"),
        ({"issuer": ""}, "issuer must be a text"),
        ({"audience": None}, "audience must be a text"),
        ({"keys": {}}, "keys must be a list of JSON Web Keys"),
        (
            {"keys": [{"kty": "oct", "kid": "a", "k": "AAAA"}]},
            "keys must hold at least one public RSA or EC key",
        ),
        (
            {"keys": [{**SIGNER.public, "d": "AAAA"}]},
            "keys must hold at least one public RSA or EC key",
        ),
        ({"keys": [SIGNER.secret]}, "keys must hold at least one public RSA or EC key"),
        ({"callers": []}, "callers must be an object"),
        ({"callers": {"http": []}}, "callers has 'http'; ports are api, admin, kv"),
        ({"callers": {"kv": ENGINE}}, "callers.kv must be a list"),
    ],
)
def test_a_wrong_member_of_the_file_is_named(change, why):
    with pytest.raises(ValueError, match=f"^{why}"):
        parse_peers(json.dumps({**peers(SIGNER), **change}))


def test_keys_of_an_unknown_kind_do_not_spoil_the_others():
    strange = {"kty": "EC", "crv": "P-1", "kid": "strange", "x": "AA", "y": "AA"}
    content = parse_peers(json.dumps({**peers(), "keys": [strange, SIGNER.public]}))
    assert set(content.keys) == {"one"}
    assert content.callers["kv"] == frozenset(CALLERS["kv"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["iat", "nbf", "exp", "aud", "iss", "sub", *POD]), JSON))
def test_any_claims_are_proof_or_refusal_and_never_an_error(tmp_path_factory, claims):
    """Signed by the cluster's own key: whatever is in it, the engine goes on."""
    one = parse_peers(json.dumps(peers(SIGNER)))
    folder = tmp_path_factory.mktemp("any")
    verifier = Verifier(write(folder / "peers.json", peers(SIGNER)), clock=lambda: NOW)
    assert one.required
    try:
        shown = token(**claims)
    except (TypeError, ValueError, OverflowError):
        return  # PyJWT does not sign it
    verifier.check(shown, "api")


def test_a_token_file_is_read_again_when_the_kubelet_replaced_it(tmp_path):
    file = TokenFile(write(tmp_path / "token", "one.two.three\n"))
    assert file() == "one.two.three"
    write(tmp_path / "token", "four.five.six")
    assert file() == "four.five.six"
    write(tmp_path / "token", "\n")
    assert file() == "four.five.six"
    with pytest.raises(FileError, match=r": must hold a token$"):
        TokenFile(write(tmp_path / "other", "a\r\nb"))
    with pytest.raises(FileError, match=r": must hold a token$"):
        TokenFile(write(tmp_path / "other", "ä"))
