"""Exports of a ledger, made from docs/ledger-format.md alone, and what the tests of verify_ledger.py do with them."""

import base64
import contextlib
import hashlib
import hmac
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
import warnings

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TOOLS = pathlib.Path(__file__).resolve().parent
PROGRAM = compile((TOOLS / "verify_ledger.py").read_bytes(), "verify_ledger.py", "exec")
ORIGIN = "ledger.example/test"
ZEROS = "0" * 64


def canonical(value):
    """RFC 8785 for what these tests write."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return (
            "{" + ",".join(json.dumps(name, ensure_ascii=False) + ":" + canonical(value[name]) for name in names) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def leaf(line):
    return hashlib.sha256(b"\x00" + line).digest()


def root(leaves):
    """The definition of RFC 6962, as it stands there."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + root(leaves[:k]) + root(leaves[k:])).digest()


class Signer:
    def __init__(self, seed, name=ORIGIN):
        self.private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.name = name
        raw = b"\x01" + self.private.public_key().public_bytes_raw()
        self.id = hashlib.sha256(name.encode() + b"\n" + raw).digest()[:4]
        self.text = f"{name}+{self.id.hex()}+{base64.b64encode(raw).decode()}"

    def line(self, text):
        return f"— {self.name} {base64.b64encode(self.id + self.private.sign(text.encode())).decode()}\n"

    def note(self, text):
        return (text + "\n" + self.line(text)).encode()


OLD, NEW, STRANGER, ELSEWHERE = Signer(1), Signer(2), Signer(3), Signer(4, "ledger.example/other")


class Ledger:
    """A ledger in memory: its lines, and what goes beside them into an export."""

    def __init__(self):
        self.lines, self.streams, self.payloads = [], {}, {}
        self.first = 0
        self.keys = [OLD.text, NEW.text]
        self.add(f"key:{OLD.id.hex()}", "key.added", verifier=OLD.text)  # 0
        for number in range(3):  # 1, 2 and 3, 4 and 5, 6
            stream = f"cmd:{number}"
            kept = self.payload(f'{{"amount":{number}}}'.encode(), number)
            self.add(
                stream, "command.accepted", input=kept, args=[{"deep": self.payload(b"args", 10 + number)}], drift=-3
            )
            self.add(stream, "command.state", to="ready", summary='naïve \u001f\u007f\u2028 /"\\ \U0001f600')
        self.add(f"key:{NEW.id.hex()}", "key.added", verifier=NEW.text)  # 7
        self.add(f"key:{OLD.id.hex()}", "key.retired", verifier=OLD.text)  # 8
        self.add("cmd:0", "command.state", to="succeeded", emoji={"\U0001f600": 1, "\uff5e": 2})  # 9
        gone = self.body(1)["input"]["commit"]
        self.add(
            "cmd:0", "redaction.applied", erased=gone, target=1, reason="asked", legal_basis="law", by="officer"
        )  # 10
        del self.payloads[gone]
        self.add("dest:erp", "destination.paused")  # 11

    def payload(self, data, salt):
        salt = bytes([salt]) * 32
        commit = hmac.new(salt, data, "sha256").hexdigest()
        self.payloads[commit] = data, salt
        return {"commit": commit, "bytes": len(data)}

    def add(self, stream, kind, **body):
        sseq, prev = self.streams.get(stream, (0, ZEROS))
        record = dict(
            v=1,
            idx=len(self.lines),
            stream=stream,
            sseq=sseq,
            prev=prev,
            ts="2026-01-01T00:00:00.000000Z",
            clock={"source": "system"},
            type=kind,
            tenant=0,
            actor={"type": "system", "id": "test"},
            trace={},
            body=body,
        )
        self.lines.append(canonical(record).encode())
        self.streams[stream] = sseq + 1, leaf(self.lines[-1]).hex()

    def record(self, idx):
        return json.loads(self.lines[idx])

    def body(self, idx):
        return self.record(idx)["body"]

    def text(self, size=None):
        leaves = [leaf(line) for line in self.lines[:size]]
        return f"{ORIGIN}\n{len(leaves)}\n{base64.b64encode(root(leaves)).decode()}\n"

    def retain(self, first):
        """What stands before `first` is forgotten, and a record says so."""
        self.add("ledger:retention", "retention.applied", first=first, keys=[NEW.text])
        kept = {value for line in self.lines[first:] for value in line.decode().split('"') if len(value) == 64}
        self.first, self.payloads = first, {commit: data for commit, data in self.payloads.items() if commit in kept}

    def write(self, folder, signer=NEW):
        folder = pathlib.Path(folder)
        (folder / "payloads").mkdir()
        (folder / "records.jsonl").write_bytes(b"".join(line + b"\n" for line in self.lines[self.first :]))
        (folder / "leaves").write_text("".join(leaf(line).hex() + "\n" for line in self.lines))
        (folder / "checkpoint").write_bytes(signer.note(self.text()))
        (folder / "keys.json").write_text(canonical({"first": self.first, "keys": self.keys}) + "\n")
        for commit, (data, salt) in self.payloads.items():
            (folder / "payloads" / commit).write_bytes(data)
            (folder / "payloads" / (commit + ".salt")).write_text(salt.hex() + "\n")


def answer(*arguments):
    """The first line and the exit code of the verifier's command line, run in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["verify_ledger.py", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            exec(PROGRAM, {"__name__": "__main__", "__doc__": ""})
        code = 0
    except SystemExit as exit:
        code = exit.code
    finally:
        sys.argv = before
    return out.getvalue().split("\n")[0], code


class Case(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore", ResourceWarning)  # the verifier leaves its files to the end of the process
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ledger-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.count = 0

    def write(self, ledger=None, signer=NEW):
        self.count += 1
        export = self.folder / str(self.count)
        export.mkdir()
        (ledger or Ledger()).write(export, signer)
        return export

    def verdict(self, expected, export, *arguments):
        self.assertEqual((expected, 0 if expected == "ok" else 1), answer(*arguments, export))

    def damaged(self, expected, name, change, export, *arguments):
        """`change` takes the bytes of the file `name` of a good export and gives others, or None to take it away."""
        path = export / name
        good = path.read_bytes()
        changed = change(good)
        path.unlink() if changed is None else path.write_bytes(changed)
        self.verdict(expected, export, *arguments)
        path.write_bytes(good)

    def resigned(self, expected, change, *arguments, signer=NEW, ledger=None):
        """`change` takes a ledger; what comes out is signed by one who has the key."""
        ledger = ledger or Ledger()
        change(ledger)
        self.verdict(expected, self.write(ledger, signer), *arguments)

    def kinds(self, expected, name, kinds):
        export = self.write()
        for kind, change in kinds.items():
            with self.subTest(kind):
                self.damaged(expected, name, change, export)

    def outside(self, note):
        path = self.folder / "outside"
        path.write_bytes(note)
        return ["--checkpoint", path]


def replace(old, new, count=-1):
    """A change of bytes that fails when there is nothing to change."""

    def change(data):
        before, after = (part.encode() if isinstance(part, str) else part for part in (old, new))
        assert before in data, before
        return data.replace(before, after, count)

    return change
