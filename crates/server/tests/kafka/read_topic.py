"""Reads whole topics with a client that shares no code with Wayhold, and prints one JSON object per
record: partition, offset, key, headers, and the value in base64."""

import base64
import json
import sys

from kafka import KafkaConsumer, TopicPartition

servers, *topics = sys.argv[1:]
consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
partitions = [
    TopicPartition(topic, partition)
    for topic in topics
    for partition in sorted(consumer.partitions_for_topic(topic) or [])
]
ends = consumer.end_offsets(partitions)
for partition in partitions:
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    while consumer.position(partition) < ends[partition]:
        for record in consumer.poll(timeout_ms=1000).get(partition, []):
            print(json.dumps({
                "partition": record.partition,
                "offset": record.offset,
                "key": record.key and record.key.decode(),
                "headers": {name: value.decode() for name, value in record.headers},
                "value": base64.b64encode(record.value).decode(),
            }))
