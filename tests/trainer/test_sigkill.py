"""Real SIGKILLs on a real broker: the surviving lineage equals an undisturbed run's, bit for bit."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("torch")

from tests.trainer import doomed_trainer
from tests.trainer.material import append_groups, group_bytes
from tests.trainer.run_loop import ALGORITHMS, TOPICS, config_of, log_of, train
from tests.trainer.sigkills import (
    SPARSE,
    USELESS,
    Death,
    Outcome,
    assert_exactly_once,
    folded,
    outcome,
    said,
    start,
    steps_of,
)
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.training import GroupsGivenBack
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.torch, pytest.mark.kafka, pytest.mark.timeout(300)]

GROUPS = tuple(group_bytes(i) for i in range(8))
SEEDS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 1
AT_FIRST = (Death("half-written checkpoint"), Death("half-written version"))
WHILE_IT_WAITS = (
    Death("before groups are given back", num_groups=2),
    Death("after groups were given back", num_groups=2),
    Death("after groups were given back", num_groups=5),
    Death("after groups were given back", num_groups=5),
)
"""For others in the stead of group 1; of groups 3 and 4, after a first batch."""
AT_EACH_SEAM = {
    (1, 1): (
        Death("before the step"),
        Death("after the step"),
        Death("half-written checkpoint"),
        Death("between checkpoint and publish"),
        Death("half-written version"),
        Death("inside an update"),
        Death("half-written version"),
        Death("between manifest and training_step"),
        Death("between manifest and training_step"),
    ),
    (3, 1): (
        Death("before the step", 2),
        Death("after the step", 2),
        Death("half-written version", 2),
        Death("between checkpoint and publish", 2),
        Death("between manifest and training_step", 2),
        Death("inside an update", 2),
        Death("half-written checkpoint"),
        Death("between checkpoint and publish", 3),
    ),
    (1, 3): (
        Death("before the step"),
        Death("after the step"),
        Death("half-written checkpoint"),
        Death("before the step", 2),
        Death("after the step"),
        Death("half-written checkpoint"),
        Death("between checkpoint and publish"),
        Death("half-written version"),
        Death("between manifest and training_step"),
        Death("inside an update"),
        Death("between checkpoint and publish"),
        Death("half-written version"),
    ),
    (3, 2): (
        Death("before the step", 2),
        Death("after the step", 2),
        Death("between checkpoint and publish"),
        Death("half-written version"),
        Death("between manifest and training_step"),
        Death("half-written checkpoint"),
        Death("between checkpoint and publish", 2),
        Death("between manifest and training_step"),
    ),
}
"""By `checkpoint_every` and `[publish] every`. At (1, 1) three of the deaths leave a checkpoint more, whose publishing
two of the next do not survive. At (3, 1) all die in the second step but the last two, of which the first replays it. At
(1, 3) five leave, or meet, a checkpoint between two versions; the others die around version 1 and the last. At (3, 2)
all die in the second step, which leads to version 1, but the last three, which replay it.
"""
VERSIONS = {1: [1, 2, 3, 4], 2: [0, 1, 1, 2], 3: [0, 0, 1, 2]}
"""By `[publish] every`: the newest after each of the four steps."""
BETWEEN_UPDATES = (Death("between updates", 2), Death("between updates", 3))
"""Of two mini-batches, and of two passes."""


Undisturbed = Callable[[str, int], tuple[Outcome, Counter[str]]]


@pytest.fixture(scope="module")
def undisturbed(untied: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Of a trainer that nobody kills, by its algorithm and `[publish] every`; how often it called each function of its
    own."""

    @functools.cache
    def outcome_of(algorithm: str, publish: int) -> tuple[Outcome, Counter[str]]:
        log, work_dir = log_of(groups_of(algorithm)), tmp_path_factory.mktemp("undisturbed")
        calls: Counter[str] = Counter()

        def look(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and (name := doomed_trainer.function_of(frame)):
                calls[name] += 1

        config = config_of(untied, work_dir, publish=publish, **ALGORITHMS[algorithm])
        sys.setprofile(look)
        try:
            train(log, config)
        finally:
            sys.setprofile(None)
        return outcome(log, TOPICS, work_dir), calls

    return outcome_of


def groups_of(algorithm: str) -> Sequence[bytes]:
    """What a run with it consumes."""
    return SPARSE if algorithm == "refill" else GROUPS


@pytest.mark.parametrize(
    ("algorithm", "every", "publish", "overlaps"),
    [
        *((name, 1, 1, False) for name in ALGORITHMS),
        *((name, 3, 1, False) for name in ("one update", "running means", "refill")),
        *((name, *every, False) for name in ("one update", "critic") for every in ((1, 3), (3, 2))),
        *(("one update", *every, True) for every in ((1, 1), (3, 2))),
    ],
)
def test_sigkilled_at_each_seam_it_resumes_bit_for_bit(
    algorithm: str,
    every: int,
    publish: int,
    overlaps: bool,
    undisturbed: Undisturbed,
    broker: str,
    kafka_log: KafkaLog,
    fresh_topics: Topics,
    untied: Path,
    tmp_path: Path,
) -> None:
    """One run whose trainer dies again and again, whether the log is replayed or not."""
    config = config_of(untied, tmp_path / "run", checkpoint_every=every, publish=publish, **ALGORITHMS[algorithm])
    deaths = [*(WHILE_IT_WAITS if algorithm == "refill" else AT_FIRST), *AT_EACH_SEAM[every, publish]]
    if config[1].resolve().num_updates > 2 and publish == 1:
        deaths += BETWEEN_UPDATES
    num_appended = 0
    for death in deaths:
        groups = groups_of(algorithm)[num_appended : death.num_groups]
        append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), groups)
        num_appended += len(groups)
        errors = tmp_path / "stderr"
        process = start(broker, fresh_topics, config, death.seam, death.call, errors, overlaps=overlaps)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, (death, (tmp_path / "stderr").read_text())
        half_written = list((tmp_path / "run").rglob(".tmp-*"))
        assert overlaps or bool(half_written) == death.seam.startswith("half-written"), death

    train(kafka_log, config, topics=fresh_topics)
    found = outcome(kafka_log, fresh_topics, tmp_path / "run")
    assert_exactly_once(found, undisturbed(algorithm, publish)[0])
    assert [step.version for step in found.steps] == VERSIONS[publish]
    assert every > 1 or len(steps_of(kafka_log, fresh_topics)) == 4
    assert folded(kafka_log, fresh_topics)[1] == 0
    assert not list((tmp_path / "run").rglob(".tmp-*"))
    if algorithm == "refill":
        words = [record for record in said(kafka_log, fresh_topics) if isinstance(record, GroupsGivenBack)]
        # The fourth trainer repeats the third's word: a step that it replays would void it.
        assert [(word.epoch, word.step, word.consumed) for word in words[:3]] == [(2, 1, 1), (3, 2, 5), (4, 2, 5)]
        assert [word.group_ids for word in words[1:3]] == [tuple(f"{index:024x}" for index in USELESS[1:])] * 2


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sigkilled_in_any_function_it_resumes_bit_for_bit(
    algorithm: str,
    seed: int,
    undisturbed: Undisturbed,
    broker: str,
    kafka_log: KafkaLog,
    fresh_topics: Topics,
    untied: Path,
    tmp_path: Path,
) -> None:
    """While groups arrive one by one. HYPOTHESIS_PROFILE=long: 20 pairs of deaths for each algorithm."""
    dice = random.Random(f"{algorithm}/{seed}")
    every, publish = dice.choice((1, 3)), dice.choice((1, 2, 3))
    expected, calls = undisturbed(algorithm, publish)
    config = config_of(untied, tmp_path / "run", checkpoint_every=every, publish=publish, **ALGORITHMS[algorithm])
    waiting = list(reversed(groups_of(algorithm)))
    # A third death in one step would have it refused.
    for _ in range(2):
        function = dice.choice(sorted(calls))
        call = dice.randint(1, calls[function])
        process = start(broker, fresh_topics, config, function, call, tmp_path / "stderr")
        while process.is_alive():
            if waiting:
                append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), [waiting.pop()])
            process.join(0.2)
        assert process.exitcode in (-signal.SIGKILL, 0), (function, call, (tmp_path / "stderr").read_text())
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), waiting[::-1])
    train(kafka_log, config, topics=fresh_topics)
    assert_exactly_once(outcome(kafka_log, fresh_topics, tmp_path / "run"), expected)
    assert folded(kafka_log, fresh_topics)[1] == 0


def test_a_batch_that_kills_three_times_is_refused_by_name(
    broker: str, kafka_log: KafkaLog, fresh_topics: Topics, untied: Path, tmp_path: Path
) -> None:
    """Status 78 without a fourth try; nothing was left out, so the next start trains as an undisturbed one."""
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), GROUPS)
    config = config_of(untied, tmp_path)
    for seam, status in [*[("before the step", -signal.SIGKILL)] * 3, ("before the step", 78)]:
        process = start(broker, fresh_topics, config, seam, 1, tmp_path / "stderr")
        process.join(120)
        assert process.exitcode == status, (tmp_path / "stderr").read_text()
    told = (tmp_path / "stderr").read_text()
    assert f"[0, 2) of {fresh_topics.name(Topic.TRANSITIONS)!r} partition 0" in told and "micro_batch_tokens" in told
    train(kafka_log, config, topics=fresh_topics)
    assert [len(step.group_ids) for step in outcome(kafka_log, fresh_topics, tmp_path).steps] == [2, 2, 2, 2]


def test_two_trainers_at_once_one_stops(
    broker: str, kafka_log: KafkaLog, fresh_topics: Topics, untied: Path, tmp_path: Path
) -> None:
    """The first waits in its process; a second claims; the first exits 78 with one clear message."""
    config = config_of(untied, tmp_path)
    first = start(broker, fresh_topics, config, "none", 0, tmp_path / "stderr")
    weights = fresh_topics.name(Topic.WEIGHTS)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert first.exitcode is None
        time.sleep(0.1)
        # A topic that was made a moment ago may have no leader yet.
        with contextlib.suppress(UnavailableError):
            if kafka_log.offsets(weights)[0].end >= 2:
                break
    second = threading.Thread(target=train, args=(kafka_log, config), kwargs={"topics": fresh_topics})
    second.start()
    first.join(90)
    errors = (tmp_path / "stderr").read_text()
    assert first.exitcode == 78, errors
    assert errors.count("FencedError") == 1
    assert "run one trainer per policy" in errors
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), GROUPS)
    second.join(120)
    assert not second.is_alive()
    found = outcome(kafka_log, fresh_topics, tmp_path)
    assert [step.step for step in found.steps] == [1, 2, 3, 4]
    assert [manifest.epoch for _, manifest in sorted(found.lineage.versions.items())] == [1, 2, 2, 2, 2]
