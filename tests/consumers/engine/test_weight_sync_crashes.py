"""Weight sync killed at any request, while engines restart and versions come: whole labelled weights only."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.consumers.engine.bench import Bench
from tests.fake_engine.weights import write_version
from tests.versions import claim
from tracegrad.schemas.errors import UnavailableError


class Killed(BaseException):
    """The weight sync process is gone."""


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 15))])
def test_engine_never_runs_on_anything_but_whole_labelled_weights(tmp_path: Path, seed: int) -> None:
    """Random publications, corruptions, claims, engine restarts, failed loads, SIGKILLs around any request."""
    chance = random.Random(seed)
    bench = Bench(tmp_path / "weights")
    engine = bench.engine
    epoch, version, good = 1, 0, ""
    bench.put(claim(1))
    labels_seen: set[str] = set()

    def strike(path: str) -> None:
        if not engine.is_paused:
            labels_seen.add(engine.label)
        fate = chance.random()
        if fate < 0.04:
            raise Killed
        if fate < 0.07:
            engine.restart(down_for=chance.randint(1, 3))
        elif fate < 0.12 and path == "/collective_rpc":
            engine.fail_load = chance.choice(["clean", "mixed"])

    engine.before_request = engine.after_request = strike
    for _ in range(40):
        if chance.random() < 0.15:
            epoch += 1
            bench.put(claim(epoch))
        if chance.random() < 0.5:
            version += 1
            manifest = write_version(bench.root, version, epoch=epoch)
            if chance.random() < 0.2:
                (Path(manifest.uri) / "model.safetensors").write_text("x" * chance.randint(0, 5))
            else:
                good = manifest.label
            bench.put(manifest)
        bench.now += chance.choice([0.0, 40.0])
        try:
            bench.look()
        except UnavailableError:
            pass
        except Killed:
            bench.start()
    engine.before_request = engine.after_request = lambda path: None
    engine.down_for, engine.fail_load = 0, None
    bench.now += 1000
    if good:
        bench.look()
        assert (engine.label, engine.is_paused, bench.acks()[-1]) == (good, False, good)
    assert engine.violations == []
    assert labels_seen - {"default"} <= set(bench.acks()), "what sampled was acknowledged"
