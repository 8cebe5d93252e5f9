"""What the pulls from one prefill engine may hold of a decode engine."""

from tests.engine.core.test_scheduler import ask, make, step

SILENT, OTHER = ("10.0.0.1:8002",), ("10.0.0.2:8002",)


def pulled(scheduled):
    return [job.request_id for job in scheduled.pull_jobs]


def test_pulls_from_one_engine_take_half_of_the_places_and_others_pass_those_that_wait():
    scheduler = make(blocks=640, seqs=8)
    for index in range(8):
        scheduler.add(ask(f"silent{index}", 40, candidates=SILENT))
    scheduler.add(ask("other", 40, candidates=OTHER))
    scheduler.add(ask("here", 40))
    scheduled, _ = step(scheduler)
    assert pulled(scheduled) == ["silent0", "silent1", "silent2", "silent3", "other"]
    assert [chunk.request_id for chunk in scheduled.plan.chunks] == ["here"]
    assert scheduled.blocked_by == "pull"
    assert [s.request_id for s in scheduler.waiting] == [f"silent{i}" for i in range(4, 8)]


def test_pulls_from_one_engine_take_half_of_the_memory():
    scheduler = make(blocks=64, seqs=32)
    for index in range(4):
        scheduler.add(ask(f"silent{index}", 14 * 16, candidates=SILENT))
    scheduler.add(ask("here", 20 * 16))
    scheduled, _ = step(scheduler)
    assert pulled(scheduled) == ["silent0", "silent1"]
    assert [chunk.request_id for chunk in scheduled.plan.chunks] == ["here"]


def test_one_prompt_larger_than_the_share_is_pulled_when_it_is_alone():
    scheduler = make(blocks=64)
    scheduler.add(ask("large", 40 * 16, candidates=SILENT))
    assert pulled(step(scheduler)[0]) == ["large"]
