"""`kubectl argosy status` shows what serves, what clients get, and only what is not fine."""

from typing import Any

from argosy_operator.cli.kubectl.status import (
    fleet_text,
    fleets_table,
)

NOW = 1_800_000_000.0


def chat(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "chat", "namespace": "a", "creationTimestamp": "2027-01-15T07:00:00Z"},
        "spec": {
            "model": {"uri": "sim://opt-13b-a100"},
            "slo": {"ttft": {"target": "500ms"}, "tpot": {"target": "50ms"}, "attainment": "90%"},
            "autoscaling": {"policy": "Goodput"},
        },
        "status": {
            "mode": "disaggregated",
            "url": "http://chat.a.svc",
            "columns": {"prefill": "1/1", "decode": "1/2", "gpus": "0", "slo": "Met"},
            "goodput": {"attainment": "0.95", "ttftP90": "400ms", "offeredRps": "3.5"},
            "roles": {"decode": {"desired": 2, "serving": 1, "ready": 1, "pending": 1}},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Serving"},
                {"type": "Progressing", "status": "True", "reason": "PodsStarting", "message": "m"},
            ],
            **status,
        },
    }


def test_the_table_has_a_line_for_each_fleet_with_what_is_not_fine() -> None:
    head, line = fleets_table([chat()], NOW).splitlines()
    assert head.split()[:4] == ["NAME", "MODE", "P", "D"]
    assert line.split() == [
        "chat", "disaggregated", "1/1", "1/2", "0", "Met", "0.95", "400ms", "-", "PodsStarting",
        "60m",
    ]  # fmt: skip


def test_wide_adds_where_clients_reach_it_and_all_namespaces_name_theirs() -> None:
    text = fleets_table([chat()], NOW, wide=True, everywhere=True)
    assert text.startswith("NAMESPACE")
    assert "http://chat.a.svc" in text
    assert "Goodput" in text


def test_one_fleet_shows_its_roles_its_goal_its_troubles_and_its_address() -> None:
    fleet = chat()
    fleet["status"]["roles"]["decode"] |= {"draining": 3, "gpus": 4, "revision": "0a1b"}
    text = fleet_text(fleet, NOW)
    (row,) = (line.split() for line in text.splitlines() if line.startswith("decode"))
    assert row == ["decode", "2", "1", "1", "1", "3", "4", "0a1b"]
    assert "0.95 of requests met it, of 3.5 requests/s; goal: 90% within TTFT 500ms" in text
    assert "Progressing=True PodsStarting: m" in text
    assert "Ready" not in text.partition("Not fine")[2]
    assert "http://chat.a.svc/v1" in text


def test_one_fleet_shows_the_newer_images_that_it_does_not_take() -> None:
    newer = {"engine": "engine:2", "gateway": "gateway:2"}
    assert (
        "Newer images: engine engine:2, gateway gateway:2. spec.imageUpdates: Follow takes them."
    ) in fleet_text(chat(newerImages=newer), NOW).splitlines()
    assert "Newer images" not in fleet_text(chat(), NOW)


def test_a_fleet_that_no_operator_has_seen_says_so() -> None:
    new = chat()
    del new["status"]
    assert "no operator has seen it" in fleets_table([new], NOW)
    assert "No pods are reported yet." in fleet_text(new, NOW)


def test_the_details_of_a_fleet_are_these_lines() -> None:
    fleet = chat()
    fleet["status"]["roles"]["prefill"] = {"serving": 1, "draining": 2, "revision": "r7"}
    fleet["status"]["conditions"].append({"type": "Stalled", "status": "True", "reason": "Bad"})
    _, _, *lines = fleet_text(fleet, NOW).splitlines()
    assert [line.split() for line in lines[:5]] == [
        [],
        ["ROLE", "WANTED", "SERVING", "READY", "PENDING", "DRAINING", "GPUS", "REVISION"],
        ["decode", "2", "1", "1", "1", "0", "0", "-"],
        ["prefill", "0", "1", "0", "0", "2", "0", "r7"],
        [],
    ]
    assert lines[5:] == [
        "SLO  0.95 of requests met it, of 3.5 requests/s; goal: 90% within TTFT 500ms and TPOT "
        "50ms",
        "",
        "Not fine",
        "  Progressing=True PodsStarting: m",
        "  Stalled=True Bad: ",
        "",
        "URL  http://chat.a.svc/v1  (inside the cluster)",
    ]


def test_a_rollout_is_shown_with_both_revisions_and_what_it_waits_for() -> None:
    rollout = {
        "strategy": "Paced",
        "state": "NewPodsStart",
        "waitsFor": "1 colocated pods of the new revision to serve",
        "new": {"revision": "bbbb", "desired": {"colocated": 1}, "serving": {"colocated": 0}},
        "old": [{"revision": "aaaa", "desired": {"colocated": 2}, "serving": {"colocated": 2}}],
    }
    lines = fleet_text(chat(rollout=rollout), NOW).splitlines()
    at = lines.index("Rollout (Paced) NewPodsStart: 1 colocated pods of the new revision to serve")
    assert [line.split() for line in lines[at + 2 : at + 4]] == [
        ["new", "bbbb", "colocated", "0", "1"],
        ["old", "aaaa", "colocated", "2", "2"],
    ]
    assert not [line for line in fleet_text(chat(), NOW).splitlines() if "Rollout" in line]
