"""Tells each receiver of docs/consumers.md everything twice, and looks for effects that came twice.

usage: consumers.py NAME < BLOCK     in an empty folder
"""
import http.client, json, socket, sqlite3, subprocess, sys, time

name, block = sys.argv[1], sys.stdin.read()


def database():
    db = sqlite3.connect("orders.db")
    db.executescript(
        "CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY); CREATE TABLE IF NOT EXISTS placed (body TEXT);"
        "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, number TEXT);"
        "CREATE TABLE IF NOT EXISTS reading (place INTEGER); INSERT INTO reading VALUES (0)"
    )
    return db


def placed():
    return [body for (body,) in sqlite3.connect("orders.db").execute("SELECT body FROM placed ORDER BY rowid")]


def webhook():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = subprocess.Popen([sys.executable, "-c", block.replace("9000", str(port))], stderr=subprocess.DEVNULL)
    try:
        for identity, body in [("evt_a", "1"), ("evt_a", "1"), ("evt_b", "2"), ("evt_a", "1")]:
            end = time.monotonic() + 20
            while True:
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                    connection.request("POST", "/", body, {"webhook-id": identity})
                    break
                except ConnectionRefusedError:
                    assert program.poll() is None and time.monotonic() < end, "the receiver does not answer"
                    time.sleep(0.05)
            assert connection.getresponse().status == 204
    finally:
        program.kill()
        program.wait()
    assert placed() == ["1", "2"], placed()


def api(told):
    db, answers = database(), []
    for key, body in [("a", "1"), ("a", "1"), ("b", "2"), ("a", "1")]:
        answers.append(told["post_order"](db, {"idempotency-key": key}, body))
    assert answers == [(201, "SO-1"), (200, "SO-1"), (201, "SO-2"), (200, "SO-1")], answers
    assert placed() == ["1", "2"], placed()


class Record:
    def __init__(self, identity, body):
        self.identity, self.body = identity, body

    def headers(self):
        return [("ce_source", b"//shop"), ("ce_id", self.identity.encode())]

    def value(self):
        return self.body.encode()


def kafka(told):
    db = database()
    for identity, body in [("a", "1"), ("a", "1"), ("b", "2"), ("a", "1")]:
        told["handle"](db, Record(identity, body))
    assert placed() == ["1", "2"], placed()


def file(told):
    db = database()
    line = lambda identity, data: json.dumps({"source": "//shop", "id": identity, "data": data}) + "\n"
    with open("out.ndjson", "w") as out:
        for text in [line("a", 1), line("a", 1), line("b", 2)[:9], line("b", 2)[9:], line("a", 1), line("c", 3)]:
            out.write(text)
            out.flush()
            told["read_on"](db, "out.ndjson")
    assert placed() == ["1", "2", "3"], placed()


told = {}
if name != "webhook":
    exec(compile(block, f"docs/consumers.md ({name})", "exec"), told)
{"webhook": webhook, "http": lambda: api(told), "kafka": lambda: kafka(told), "file": lambda: file(told)}[name]()
