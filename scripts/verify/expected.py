"""What must arrive, told from the source files and the documentation of the maps alone.

Nothing here is Wayhold's: rows are read by Python's csv, documents by its json, ids are its hashlib.
"""

import csv
import hashlib
import json
import os
import re
from datetime import datetime, timezone
from typing import Iterator, NamedTuple, Optional


class Expected(NamedTuple):
    """One event, as an independent reader of Kafka should find it."""

    headers: dict[str, str]
    key: Optional[str]
    data: bytes
    # Not among the headers: it may be spelled in several ways.
    time: Optional[datetime]

    @property
    def id(self) -> str:
        return self.headers["ce_id"]


def ocel(folder: str) -> Iterator[Expected]:
    """The order log: a row is a JSON object of its columns, in the header's order, all of them texts."""
    with open(os.path.join(folder, "ocel_order_simulated.csv"), newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            about = next(
                first
                for column in ("packages", "orders", "items")
                if (first := first_of_list(row[f"ocel:type:{column}"]))
            )
            activity = row["ocel:activity"].lower().replace(" ", "-")
            yield event(
                id=f"ocel-{int(float(row['ocel:eid']))}",
                source="/ocel/order-management",
                kind=f"com.example.oms.{activity}.v1",
                subject=about,
                key=about,
                time=row["ocel:timestamp"],
                data=json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(),
            )


def github(folder: str) -> Iterator[Expected]:
    """Saved webhook payloads: a folder for each kind."""
    for path, data in documents(folder):
        document = json.loads(data)
        repository = (document.get("repository") or {}).get("full_name")
        organization = (document.get("organization") or {}).get("login")
        whose = repository or organization
        yield event(
            id=hashlib.sha256(data).hexdigest(),
            source="https://github.com" + (f"/{whose}" if whose else ""),
            kind="com.github." + os.path.basename(os.path.dirname(path)),
            subject=document.get("action"),
            key=repository,
            time=None,
            data=data,
        )


def epcis(folder: str) -> Iterator[Expected]:
    """Documents and bare events of EPCIS 2.0."""
    for part in ("Documents", "Events"):
        for _, data in documents(os.path.join(folder, "Capture", part)):
            document = json.loads(data)
            first = ((document.get("epcisBody") or {}).get("eventList") or [{}])[0]
            yield event(
                id=hashlib.sha256(data).hexdigest(),
                source="/epcis/capture",
                kind="org.gs1.epcis." + document["type"],
                subject=None,
                key=what_it_is_about(document) or what_it_is_about(first),
                time=document.get("eventTime") or document.get("creationDate"),
                data=data,
            )


KINDS = {"ocel": ocel, "github": github, "epcis": epcis}


def event(id, source, kind, subject, key, time, data) -> Expected:
    headers = {
        "ce_specversion": "1.0",
        "ce_id": id,
        "ce_source": source,
        "ce_type": kind,
        "ce_subject": subject,
        "ce_partitionkey": key,
        "content-type": "application/json",
    }
    present = {name: value for name, value in headers.items() if value is not None}
    return Expected(present, key, data, instant(time))


def what_it_is_about(event: dict) -> Optional[str]:
    for name in ("epcList", "parentID", "inputEPCList", "transformationID"):
        value = event.get(name)
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, str) and value.strip():
            return value
    return None


def first_of_list(text: str) -> Optional[str]:
    """The first of a list that is written as text: `['1','2']`."""
    found = re.match(r"\['([^']*)'", text)
    return found and found.group(1)


def instant(text: Optional[str]) -> Optional[datetime]:
    if text is None:
        return None
    time = datetime.fromisoformat(text)
    # EPCIS allows a date alone.
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def documents(folder: str) -> Iterator[tuple[str, bytes]]:
    """Everything below a folder, in order of names."""
    for entry in sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name)):
        if entry.is_dir():
            yield from documents(entry.path)
        elif entry.name.endswith((".json", ".jsonld")):
            with open(entry.path, "rb") as file:
                yield entry.path, file.read()
