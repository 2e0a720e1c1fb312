"""Removes a static member from a consumer group: the one request that librdkafka's admin client lacks.

In: group and instance id. Out: the member is gone and its partitions are dealt out at once. Without it a static
member that stopped in order holds its partitions until its session times out. Spoken by aiokafka's client, with
LeaveGroup version 3 (KIP-345) declared here. Failure: UnavailableError or ConfigurationError, as everywhere.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]
from aiokafka.errors import KafkaError, for_code  # type: ignore[import-untyped]
from aiokafka.protocol.api import Request, RequestStruct, Response  # type: ignore[import-untyped]
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String  # type: ignore[import-untyped]

from tracegrad.schemas.errors import ConfigurationError, UnavailableError

__all__ = ["remove_static_member"]

_LEAVE_GROUP = 13
_UNKNOWN_MEMBER = 25
_UNNAMED = ""
"""The member id of a request that names its member by instance id alone."""


class _LeaveGroupResponse(Response):  # type: ignore[misc]
    API_KEY = _LEAVE_GROUP
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "members",
            Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")), ("error_code", Int16)),
        ),
    )


class _LeaveGroupStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = _LEAVE_GROUP
    API_VERSION = 3
    RESPONSE_TYPE = _LeaveGroupResponse
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("members", Array(("member_id", String("utf-8")), ("group_instance_id", String("utf-8")))),
    )


class _LeaveGroup(Request[_LeaveGroupStruct]):  # type: ignore[misc]
    API_KEY = _LEAVE_GROUP

    def __init__(self, group: str, instance_id: str) -> None:
        self._fields = (group, [(_UNNAMED, instance_id)])

    def build(self, request_struct_class: type[_LeaveGroupStruct]) -> _LeaveGroupStruct:
        return request_struct_class(*self._fields)


def remove_static_member(
    bootstrap_servers: str,
    group: str,
    instance_id: str,
    *,
    client_settings: Mapping[str, str] | None = None,
    timeout_s: float = 15.0,
) -> bool:
    """Removes the member; False when the group has no member of that instance id. Not for a running event loop."""
    try:
        return asyncio.run(
            asyncio.wait_for(_remove(bootstrap_servers, group, instance_id, client_settings or {}), timeout_s)
        )
    except (KafkaError, TimeoutError, OSError) as error:
        raise UnavailableError(
            f"expected Kafka to remove member {instance_id!r} of group {group!r}, got {error!r}; it leaves by itself "
            "when its session times out"
        ) from error


async def _remove(bootstrap_servers: str, group: str, instance_id: str, client_settings: Mapping[str, str]) -> bool:
    client: Any = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, **_aiokafka_settings(client_settings))
    try:
        await client.start()
        coordinator = await client.find_coordinator(group)
        answer: Any = await client._send_request_to_node(coordinator, _LeaveGroup(group, instance_id))
    finally:
        await client.close()
    codes = [answer.error_code, *(code for _, _, code in answer.members)]
    failed = [code for code in codes if code]
    if failed == [_UNKNOWN_MEMBER]:
        return False
    if failed:
        raise for_code(failed[0])(f"removing member {instance_id!r} of group {group!r}")
    return True


def _aiokafka_settings(given: Mapping[str, str]) -> dict[str, Any]:
    """The allow-listed client settings in aiokafka's words."""
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    settings: dict[str, Any] = {"security_protocol": protocol, "client_id": "tracegrad"}
    if "SSL" in protocol:
        context = ssl.create_default_context(cafile=given.get("ssl.ca.location"))
        if given.get("ssl.endpoint.identification.algorithm") == "none":
            context.check_hostname = False
        if "ssl.certificate.location" in given:
            context.load_cert_chain(
                given["ssl.certificate.location"], given.get("ssl.key.location"), given.get("ssl.key.password")
            )
        settings["ssl_context"] = context
    if "SASL" in protocol:
        mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms") or ""
        if mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            raise ConfigurationError(
                f"[kafka.client] sasl.mechanism: expected PLAIN or SCRAM-SHA-256/512, got {mechanism!r}"
            )
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": given.get("sasl.username"),
            "sasl_plain_password": given.get("sasl.password"),
        }
    return settings
