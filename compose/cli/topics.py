"""`topics`: make the topics of a run, or list what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import REGISTRY

from ..kafka.log import KafkaLog
from ..kafka.topic_admin import GroupPlan, TopicPlan, create_topics, plan_groups, plan_topics
from .common import (
    RUNS,
    JsonFlag,
    NewRunOption,
    RunOption,
    RunsDirOption,
    answering,
    echo,
    find_run,
    load_settings,
)

app = typer.Typer(help="Create the topics of a run, or list them.", no_args_is_help=True)


@app.command("create")
def create(
    file: Annotated[Path | None, typer.Argument(help="The TOML file; without it ./tracegrad.toml.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print topics, settings and ACLs, and create nothing.")
    ] = False,
    bootstrap_servers: Annotated[str | None, typer.Option(help="host:port,... of your Kafka.")] = None,
    run: NewRunOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Create the topics of a run on your own cluster, or print them for whoever owns it.

    Example: tracegrad topics create tracegrad.toml --dry-run
    """
    settings = load_settings(file, {"run": run, "kafka.bootstrap_servers": bootstrap_servers}, for_training=False)
    kafka, topics = settings.kafka, settings.topics
    plans = plan_topics(topics, policies=(settings.policy.name,), kafka=kafka)
    if dry_run:
        _print_plans([*plans, *plan_groups(topics)], as_json=as_json)
        return
    if kafka.bootstrap_servers is None:
        raise ConfigurationError("topics create needs a cluster: --bootstrap-servers host:port")
    log = KafkaLog(kafka.bootstrap_servers, kafka.client)
    _print_plans(create_topics(log, topics, plans), as_json=as_json)


def _print_plans(plans: Sequence[TopicPlan | GroupPlan], *, as_json: bool) -> None:
    for plan in plans:
        if as_json:
            echo(msgspec.json.encode(plan).decode())
            continue
        is_new = plan.is_new if isinstance(plan, TopicPlan) else None
        first, *rest = plan.lines()
        echo(first + {None: "", True: "  (made)", False: "  (was there)"}[is_new])
        for line in rest if is_new is None else []:
            echo(line)


@app.command("list")
def list_topics(run: RunOption = None, runs_dir: RunsDirOption = RUNS, as_json: JsonFlag = False) -> None:
    """List the topics of a run, with the number of records in each.

    Example: tracegrad topics list --run mine
    """
    with answering(find_run(run, runs_dir)) as wiring:
        log = wiring.log()
        for spec in REGISTRY:
            name = wiring.topics.name(spec.topic)
            offsets = log.offsets(name)
            count = sum(kept.end - kept.begin for kept in offsets.values())
            if as_json:
                fields = {"topic": spec.topic.value, "name": name, "partitions": len(offsets), "records": count}
                echo(msgspec.json.encode(fields).decode())
            else:
                echo(f"{name:40} {len(offsets):2d} partitions {count:9d} records  {spec.value}")
