"""Frames of the KV protocol: round trips, and bytes from an enemy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_engine.transfer import wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)
CONTROL = st.sampled_from([kind for kind in wire.Kind if not kind.raw])


@given(CONTROL, st.dictionaries(st.text(max_size=10), JSON, max_size=5))
def test_a_control_frame_comes_back_as_it_was(kind, payload):
    data = wire.encode_control(kind, payload)
    frame = wire.decode_header(data[: wire.HEADER_BYTES])
    assert frame == wire.Frame(kind, len(data) - wire.HEADER_BYTES)
    assert wire.decode_control(data[wire.HEADER_BYTES :]) == payload


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_the_head_of_a_run_comes_back_as_it_was(first, count, size):
    header, head = wire.encode_run_head(first, count, size)
    assert wire.decode_header(header) == wire.Frame(wire.Kind.KV, 8 + size + 8)
    assert wire.decode_run_head(head) == wire.RunHead(first, count)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_one_damaged_byte_of_a_run_changes_its_digest(run, data):
    damaged = bytearray(run)
    damaged[data.draw(st.integers(0, len(run) - 1))] ^= data.draw(st.integers(1, 255))
    assert wire.Digest(run).digest() != wire.Digest(damaged).digest()
    assert len(wire.Digest(run).digest()) == wire.DIGEST_BYTES


def frames():
    """Whole frames that hold no KV."""
    control = st.builds(
        wire.encode_control, CONTROL, st.dictionaries(st.text(max_size=10), JSON, max_size=5)
    )
    return control | st.lists(st.integers(0, 2**32 - 1)).map(wire.encode_tokens)


def payload_of(data: bytes) -> bytes:
    head = wire.decode_header(data[: wire.HEADER_BYTES])
    return head.whole(data[wire.HEADER_BYTES :][: head.length])


FLAGS = range(6 * 8, 8 * 8)
"""Bits of a head that say nothing yet."""


@given(frames(), st.data())
def test_one_damaged_bit_of_a_frame_is_noticed_before_its_payload_is_used(whole, data):
    bit = data.draw(st.integers(0, 8 * len(whole) - 1).filter(lambda n: n not in FLAGS))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    assert payload_of(whole) == whole[wire.HEADER_BYTES :]
    with pytest.raises(wire.WireError):
        payload_of(bytes(damaged))


@pytest.mark.parametrize("version", [1, 2, 3, 5, 255])
def test_a_frame_of_another_release_is_told_apart_from_damage(version):
    head = bytearray(wire.encode_control(wire.Kind.RELEASE, {})[: wire.HEADER_BYTES])
    assert wire.decode_header(bytes(head)) == wire.Frame(wire.Kind.RELEASE, 2)
    head[4] = version
    with pytest.raises(
        wire.WireError, match=f"speaks version {version} .* same release"
    ) as refused:
        wire.decode_header(bytes(head))
    assert refused.value.other_release


@given(st.binary(max_size=64))
def test_hostile_bytes_end_in_a_wire_error_or_a_bounded_frame(data):
    try:
        frame = wire.decode_header(data)
    except wire.WireError:
        return
    assert frame.length <= wire.MAX_RAW_BYTES


@given(st.binary(max_size=64))
def test_a_hostile_payload_ends_in_a_wire_error_or_an_object(data):
    for decode in (wire.decode_control, wire.decode_tokens):
        try:
            decode(data)
        except wire.WireError:
            continue


def test_frames_above_the_limit_are_refused_before_they_are_sent(monkeypatch):
    monkeypatch.setattr(wire, "MAX_RAW_BYTES", 100)
    with pytest.raises(wire.WireError, match="above the limit"):
        wire.encode_control(wire.Kind.REFUSED, {"message": "a" * (1 << 20)})
    with pytest.raises(wire.WireError, match="above the limit"):
        wire.encode_tokens([1] * 26)
    with pytest.raises(wire.WireError, match="above the limit"):
        wire.encode_run_head(0, 1, 85)
