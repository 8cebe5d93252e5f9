"""How an engine follows its role file, look by look."""

import asyncio

import pytest

from argosy_engine.cli import parse
from argosy_engine.errors import LoadError
from argosy_engine.server import role
from argosy_engine.server.role import Admission, EngineRole, RoleFile, role_at_start
from tests.kv.nodes import until

ARGS = ["--model", "sim:opt-13b-a100", "--served-name", "m"]


class Followed:
    """A prefill engine, what it does as looks see it, and what it was told."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "role"
        self.path.write_text("prefill")
        self.role = EngineRole("prefill", mutable=True)
        self.running = 0
        self.admits = True
        self.taken = []
        admission = Admission(lambda on: setattr(self, "admits", on))
        self.admission = admission
        self.file = RoleFile(
            self.path,
            self.role,
            busy=lambda: self.running > 0,
            close=admission.changes_role,
            take=self.taken.append,
        )

    def look(self, times=1):
        for _ in range(times):
            self.file.look()
        return self.role.now, self.admits


@pytest.fixture
def engine(tmp_path):
    return Followed(tmp_path)


def test_another_role_ends_admission_at_once_and_is_taken_when_all_has_ended(engine):
    engine.running = 1
    engine.path.write_text("decode\n")
    assert engine.look(5) == ("prefill", False)
    engine.running = 0
    assert engine.look() == ("prefill", False)
    assert engine.taken == []
    assert engine.look() == ("decode", True)
    assert engine.taken == ["decode"]
    assert engine.look(3) == ("decode", True)
    assert engine.taken == ["decode"]


async def test_an_engine_follows_its_file_until_it_ends(engine, monkeypatch):
    monkeypatch.setattr(role, "_LOOK_EVERY_S", 0.001)
    following = asyncio.create_task(engine.file.follow())
    for wanted in ("decode", "prefill"):
        engine.path.write_text(wanted)
        await until(lambda wanted=wanted: engine.role.now == wanted, within_s=20)
    assert engine.taken == ["decode", "prefill"]
    assert not following.done()
    following.cancel()
    await asyncio.wait((following,))


@pytest.mark.parametrize("text", ["", "colocated", "gateway", "prefill decode"])
def test_a_file_with_another_word_changes_nothing_and_is_logged_once(engine, caplog, text):
    engine.path.write_text(text)
    assert engine.look(3) == ("prefill", True)
    assert [r.message for r in caplog.records if "write prefill or decode" in r.message] == [
        f"the engine stays prefill: {engine.path} says {text!r}: write prefill or decode"
    ]


def test_a_new_role_does_not_end_a_drain(engine):
    engine.admission.drains(True)
    engine.path.write_text("decode")
    assert engine.look(2) == ("decode", False)
    engine.admission.drains(False)
    assert engine.look() == ("decode", True)


@pytest.mark.parametrize(
    ("given", "text", "says"),
    [
        ("prefill", None, "cannot read the role from"),
        ("decode", "both", "says 'both': write prefill or decode"),
        ("colocated", "prefill", "leave it out, or change --role"),
    ],
)
def test_a_role_file_that_cannot_be_used_ends_the_start(tmp_path, given, text, says):
    path = tmp_path / "role"
    if text is not None:
        path.write_text(text)
    with pytest.raises(LoadError) as raised:
        role_at_start(parse([*ARGS, "--role", given, "--role-file", str(path)]))
    assert raised.value.reason == "BadArgument"
    assert says in raised.value.message
