"""Reads topics of a Kafka and says whether what arrived is what was sent; run by `kafka` beside it."""

import hashlib
import json
import sys
import time
from datetime import datetime

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)
from kafka.partitioner.default import murmur2

from expected import KINDS

PARTITIONS = 4

# Without a record for so long, a topic that should have more counts as unreadable.
PATIENCE_SECONDS = 20

# Differences named before the rest is only counted.
NAMED_MAX = 20


def check(servers: str, kind: str, topic: str, folder: str) -> int:
    """Every event arrived once or more, as it was, and in order within its key."""
    wanted = {event.id: (place, event) for place, event in enumerate(KINDS[kind](folder))}
    wrong = []
    seen = set()
    partition_of_key = {}
    last_place_of_key = {}
    records = 0
    for record in records_of(servers, topic):
        records += 1
        headers = [(name, value.decode()) for name, value in record.headers]
        id = dict(headers).get("ce_id")
        if id not in wanted:
            wrong.append(f"{id}: nobody sent it")
            continue
        place, event = wanted[id]
        wrong.extend(f"{id}: {what}" for what in differences(event, record, headers))
        if event.key is not None:
            home = partition_of_key.setdefault(event.key, record.partition)
            if home != record.partition:
                wrong.append(f"{id}: in partition {record.partition}, its key began in {home}")
            if id not in seen:
                if place < last_place_of_key.get(event.key, -1):
                    wrong.append(f"{id}: after a later event of its key")
                last_place_of_key[event.key] = place
        seen.add(id)
    wrong.extend(f"{id}: never arrived" for id in wanted if id not in seen)
    for what in wrong[:NAMED_MAX]:
        print(what, file=sys.stderr)
    if len(wrong) > NAMED_MAX:
        print(f"and {len(wrong) - NAMED_MAX} more", file=sys.stderr)
    report = {
        "events": len(wanted),
        "records": records,
        "keys": len(partition_of_key),
        "partitions": len(set(partition_of_key.values())),
        "wrong": len(wrong),
    }
    print(json.dumps(report))
    return 1 if wrong else 0


def differences(event, record, headers):
    """What of a record is not as its event says."""
    found = dict(headers)
    when = found.pop("ce_time", None)
    if len(found) + (when is not None) != len(headers):
        yield "a header occurs twice"
    if found != event.headers:
        yield f"headers are {found}, not {event.headers}"
    if (when is None) != (event.time is None):
        yield f"ce_time is {when}, not {event.time}"
    elif when is not None:
        if not when.endswith("Z") or datetime.fromisoformat(when) != event.time:
            yield f"ce_time is {when}, not {event.time}"
        # From the future or before 1970 the record has its time of acceptance instead.
        if 0 <= event.time.timestamp() < time.time():
            if record.timestamp != int(event.time.timestamp() * 1000 + 0.5):
                yield f"the record's time is {record.timestamp}, not that of {event.time}"
    key = record.key.decode() if record.key is not None else None
    if key != event.key:
        yield f"the record's key is {key}, not {event.key}"
    elif key is not None:
        home = (murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS
        if record.partition != home:
            yield f"in partition {record.partition}, where Java's producer chooses {home}"
    if record.value != event.data:
        yield f"{len(record.value or b'')} bytes of data are not the {len(event.data)} sent"


def read(servers: str, topic: str) -> int:
    """Prints every record: where it is, its id, and the hash of its value."""
    for record in records_of(servers, topic):
        headers = {name: value.decode() for name, value in record.headers}
        line = {
            "partition": record.partition,
            "offset": record.offset,
            "id": headers.get("ce_id"),
            "sha256": hashlib.sha256(record.value or b"").hexdigest(),
        }
        print(json.dumps(line))
    return 0


def show(servers: str, topic: str) -> int:
    """Prints every record with all that it holds, texts as they are; null is a value that is not there."""
    for record in records_of(servers, topic):
        line = {
            "partition": record.partition,
            "key": record.key.decode() if record.key is not None else None,
            "headers": [[name, value.decode()] for name, value in record.headers],
            "value": record.value.decode() if record.value is not None else None,
            "timestamp": record.timestamp,
        }
        print(json.dumps(line))
    return 0


def records_of(servers: str, topic: str):
    """All records that the topic has now, in order within each partition."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
        max_poll_records=5000,
    )
    partitions = [TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic) or ())]
    if not partitions:
        raise SystemExit(f"there is no topic {topic}")
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    open_ones = {partition for partition, end in ends.items() if end > 0}
    heard = time.monotonic()
    while open_ones:
        for partition, records in consumer.poll(timeout_ms=200).items():
            heard = time.monotonic()
            yield from records
        open_ones = {one for one in open_ones if consumer.position(one) < ends[one]}
        if time.monotonic() - heard > PATIENCE_SECONDS:
            raise SystemExit(f"{topic} cannot be read to its end: {open_ones}")
    consumer.close()


def create(servers: str, *topics: str) -> int:
    """Makes topics and waits until they can be written to."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    options = {"num_partitions": PARTITIONS, "replication_factor": 1}
    admin.create_topics({topic: options for topic in topics}, wait_for_metadata=True)
    admin.close()
    return 0


def make(servers: str, topic: str, partitions: str, *settings: str) -> int:
    """Makes a topic of so many partitions, with settings; `replicas=1,2` names the brokers of each, its leader first."""
    configs = dict(setting.split("=", 1) for setting in settings)
    replicas = [int(broker) for broker in configs.pop("replicas", "1").split(",")]
    assignments = {partition: replicas for partition in range(int(partitions))}
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics({topic: {"assignments": assignments, "configs": configs}}, wait_for_metadata=True)
    admin.close()
    return 0


def leaders(servers: str, topic: str) -> int:
    """Prints who leads each partition and which of its replicas are in sync."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    for one in sorted(partitions_of(admin, topic), key=lambda one: one["partition_index"]):
        print(json.dumps({"leader": one["leader_id"], "in_sync": sorted(one["isr_nodes"])}))
    admin.close()
    return 0


def lead(servers: str, topic: str) -> int:
    """Hands the lead of each partition to the replica that is named after its preferred one, which is preferred from now on."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    turned = {}
    for one in partitions_of(admin, topic):
        first, *others = one["replica_nodes"]
        turned[TopicPartition(topic, one["partition_index"])] = [*others, first]
    refused = [error for error in admin.alter_partition_reassignments(turned).values() if error is not None]
    if refused:
        raise SystemExit(f"the replicas of {topic} cannot be named in another order: {refused}")
    admin.elect_leaders(0, {topic: [partition.partition for partition in turned]})
    admin.close()
    return 0


def partitions_of(admin: KafkaAdminClient, topic: str):
    """What the cluster says of each partition."""
    return admin.describe_topics([topic])[0]["partitions"]


def throttled(servers: str, topic: str, client: str) -> int:
    """Writes a record as this client, and prints for how many milliseconds the broker put the client off."""
    producer = KafkaProducer(bootstrap_servers=servers, client_id=client)
    producer.send(topic, b"{}").get(timeout=PATIENCE_SECONDS)
    print(int(producer.metrics()["producer-metrics"]["throttle-time-max"]))
    producer.close()
    return 0


def forbid(servers: str, *topics: str) -> int:
    """Denies writing to topics; needs a Kafka with an authorizer."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    for topic in topics:
        admin.create_acls(
            [
                ACL(
                    principal="User:*",
                    host="*",
                    operation=ACLOperation.WRITE,
                    permission_type=ACLPermissionType.DENY,
                    resource_pattern=ResourcePattern(ResourceType.TOPIC, topic),
                )
            ]
        )
    admin.close()
    return 0


VERBS = {
    "check": check,
    "read": read,
    "show": show,
    "create": create,
    "forbid": forbid,
    "make": make,
    "leaders": leaders,
    "lead": lead,
    "throttled": throttled,
}

if __name__ == "__main__":
    verb, *arguments = sys.argv[1:] or [""]
    if verb not in VERBS:
        raise SystemExit("usage: see scripts/verify/kafka")
    sys.exit(VERBS[verb](*arguments))
