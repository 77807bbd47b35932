"""The ledger's protocol, command by command, on a real server."""

from __future__ import annotations

import time

import pytest
from redis import Redis

from producer.embedded import EmbeddedRedis
from worker.contract import (
    Answered,
    ErrorKind,
    Failed,
    Job,
    ModelIdentity,
    Quarantined,
    QuestionSet,
    Source,
    Usage,
    UsageError,
    answer_from_probabilities,
)
from worker.ledger import Claim, Ledger, LedgerSettings, create_app, queue_name
from worker.ledger.ledger import ModelRefused

QUESTIONS = QuestionSet.model_validate({"dismissed": {"type": "noul", "instructions": "Is the appeal dismissed?"}})
OUTCOME = Answered(
    answers={"dismissed": answer_from_probabilities(QUESTIONS["dismissed"], [0.75, 0.25])},
    usage=Usage(input_tokens=10, computed_tokens=5),
)


def identity(checkpoint: str = "aa") -> ModelIdentity:
    return ModelIdentity(
        name="tiny",
        family="zeroshot",
        readout="letters",
        checkpoint_sha256=checkpoint,
        dtype="float32",
        max_length=100,
        engine_version="1",
    )


@pytest.fixture
def make(redis: Redis, redis_server: EmbeddedRedis):
    def make(**settings: float) -> Ledger:
        app = create_app(redis_server.url, queue_name("tiny"))
        ledger = Ledger(redis, "run1", app, LedgerSettings(**settings))
        ledger.open(QUESTIONS)
        return ledger

    return make


def job(name: str, text: str = "text") -> tuple[Job, Source]:
    return Job(document_id=name, state=text), Source(position=0, columns={"court": "Assizes"})


def claimed(ledger: Ledger, name: str, worker: str = "w") -> Claim:
    claim = ledger.claim(job(name)[0].key, worker, identity())
    assert claim is not None
    return claim


def queued(ledger: Ledger) -> int:
    return ledger.redis.llen(ledger.app.conf.task_default_queue)


def test_a_job_goes_from_admission_to_a_forgotten_result(make):
    ledger = make()
    assert ledger.admit([job("a")]) == 1
    assert queued(ledger) == 1
    claim = claimed(ledger, "a")
    assert claim.attempt == 1
    assert Job.model_validate_json(claim.payload) == job("a")[0]
    assert ledger.commit(claim, OUTCOME)
    [(entry, result)] = ledger.collect()
    assert result.document_id == "a"
    assert result.source.columns == {"court": "Assizes"}
    assert result.outcome == OUTCOME
    assert abs(result.finished_at - time.time()) < 60
    ledger.forget([(entry, result.job)])
    assert ledger.redis.keys(ledger.prefix + "job:*") == []
    assert ledger.figures()["held_jobs"] == ledger.figures()["held_bytes"] == 0


def test_admitting_a_job_twice_changes_nothing(make):
    ledger = make()
    ledger.admit([job("a")])
    assert ledger.admit([job("a")]) == 1
    assert queued(ledger) == 1
    assert ledger.figures()["admitted"] == 1


def test_the_window_is_bounded_by_jobs(make):
    ledger = make(window_jobs=2)
    assert ledger.admit([job("a"), job("b"), job("c")]) == 2
    assert ledger.admit([job("c")]) == 0
    ledger.commit(claimed(ledger, "a"), OUTCOME)
    assert ledger.admit([job("c")]) == 0, "room is made by forgetting, not by committing"
    [(entry, result)] = ledger.collect()
    ledger.forget([(entry, result.job)])
    assert ledger.admit([job("c")]) == 1


def test_the_window_is_bounded_by_bytes_but_lets_one_large_job_in(make):
    ledger = make(window_bytes=1000)
    assert ledger.admit([job("large", "x" * 5000), job("small")]) == 1


def test_a_held_job_cannot_be_claimed_again(make):
    ledger = make()
    ledger.admit([job("a")])
    claimed(ledger, "a")
    assert ledger.claim(job("a")[0].key, "other", identity()) is None
    assert ledger.claim(job("unknown")[0].key, "other", identity()) is None


def test_an_expired_lease_is_reaped_and_the_late_commit_refused(make):
    ledger = make(lease=0.05)
    ledger.admit([job("a")])
    late = claimed(ledger, "a", "slow")
    time.sleep(0.1)
    assert ledger.reap() == 1
    second = claimed(ledger, "a", "quick")
    assert second.attempt == 2
    assert second.token > late.token
    assert not ledger.renew(late)
    assert not ledger.commit(late, OUTCOME)
    assert ledger.commit(second, OUTCOME)
    assert not ledger.commit(second, OUTCOME), "a commit counts once"
    assert len(ledger.collect()) == 1
    figures = ledger.figures()
    assert (figures["answered"], figures["late_commits"], figures["reaped"]) == (1, 2, 1)


def test_a_renewed_lease_is_not_reaped(make):
    ledger = make(lease=0.2)
    ledger.admit([job("a")])
    claim = claimed(ledger, "a")
    for _ in range(4):
        time.sleep(0.1)
        assert ledger.renew(claim)
        assert ledger.reap() == 0


def test_a_lost_message_is_published_again_after_the_grace(make):
    ledger = make(message_grace=0.05)
    ledger.admit([job("a"), job("b")])
    queue = ledger.app.conf.task_default_queue
    ledger.redis.rpop(queue)
    time.sleep(0.1)
    assert ledger.reap() == 1
    assert queued(ledger) == 2
    assert ledger.reap() == 0, "every waiting job has a message again"


def test_attempts_used_up_by_dying_workers_end_in_quarantine(make):
    ledger = make(max_attempts=2)
    ledger.admit([job("poison"), job("good")])
    for attempt in (1, 2):
        claimed(ledger, "poison", f"w{attempt}")
        ledger.abandon(f"w{attempt}", f"worker w{attempt} was killed by signal 9")
    assert ledger.claim(job("poison")[0].key, "w3", identity()) is None
    ledger.commit(claimed(ledger, "good"), OUTCOME)
    outcomes = {result.document_id: result.outcome for _, result in ledger.collect()}
    assert outcomes["good"] == OUTCOME
    poisoned = outcomes["poison"]
    assert isinstance(poisoned, Quarantined)
    assert poisoned.kind is ErrorKind.WORKER_LOST
    assert "w2 was killed by signal 9" in poisoned.reason


def test_a_failed_attempt_is_tried_again_and_keeps_its_last_error(make):
    ledger = make(max_attempts=2)
    ledger.admit([job("a")])
    assert ledger.fail(claimed(ledger, "a"), ErrorKind.INTERNAL, "first trouble") == "waiting"
    assert ledger.fail(claimed(ledger, "a"), ErrorKind.OUT_OF_MEMORY, "second trouble") == "quarantined"
    [(_, result)] = ledger.collect()
    assert result.attempt == 2
    assert isinstance(result.outcome, Quarantined)
    assert result.outcome.kind is ErrorKind.OUT_OF_MEMORY
    assert "second trouble" in result.outcome.reason


def test_a_released_job_has_not_used_an_attempt(make):
    ledger = make(max_attempts=1)
    ledger.admit([job("a")])
    ledger.release(claimed(ledger, "a"))
    assert claimed(ledger, "a").attempt == 1


def test_a_failure_with_a_reason_is_an_outcome(make):
    ledger = make()
    ledger.admit([job("a")])
    failure = Failed(kind=ErrorKind.DOCUMENT_TOO_LONG, reason="9,000 tokens; the limit is 8,192")
    assert ledger.commit(claimed(ledger, "a"), failure)
    assert ledger.collect()[0][1].outcome == failure
    assert ledger.figures()["failed"] == 1


def test_another_model_is_refused_and_remembered(make):
    ledger = make()
    ledger.admit([job("a"), job("b")])
    claimed(ledger, "a")
    with pytest.raises(ModelRefused):
        ledger.claim(job("b")[0].key, "w", identity("bb"))
    assert ledger.refused_identity() == identity("bb")
    assert ledger.identity() == identity()


def test_a_new_collector_begins_with_what_was_never_forgotten(make, redis):
    ledger = make()
    ledger.admit([job("a"), job("b")])
    for name in ("a", "b"):
        ledger.commit(claimed(ledger, name), OUTCOME)
    (entry, first), _ = ledger.collect()
    assert ledger.collect() == []
    ledger.forget([(entry, first.job)])
    again = Ledger(redis, "run1", ledger.app)
    assert [result.document_id for _, result in again.collect()] == ["b"]


def test_a_ledger_of_another_protocol_is_refused(make, redis):
    ledger = make()
    redis.hset(ledger.prefix + "run", "protocol", "999")
    with pytest.raises(UsageError, match="protocol 999"):
        ledger.open(QUESTIONS)
    assert Ledger.attach(redis, "run1", ledger.app) is None


def test_a_worker_finds_the_runs_settings_and_questions(make, redis):
    ledger = make(lease=7.0)
    attached = Ledger.attach(redis, "run1", ledger.app)
    assert attached is not None
    assert attached[0].settings.lease == 7.0
    assert attached[1] == QUESTIONS
    assert Ledger.attach(redis, "nosuch", ledger.app) is None


def test_purge_leaves_no_key_of_the_run_and_no_other_is_touched(make, redis):
    ledger = make()
    ledger.admit([job("a")])
    redis.set("nightcourt:{run10}:run", "another run")
    ledger.purge()
    assert redis.keys("nightcourt:{run1}:*") == []
    assert redis.exists("nightcourt:{run10}:run")


def test_only_ids_and_no_text_travel_in_a_message(make):
    ledger = make()
    ledger.admit([job("secret-id", "secret text")])
    message = ledger.redis.lrange(ledger.app.conf.task_default_queue, 0, -1)[0]
    assert b"secret" not in message
    assert b'"content-type": "application/json"' in message
