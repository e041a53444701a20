"""Tests of verify_ledger.py: exports made here, each damaged in one way.

    python3 -m unittest discover tools

Every kind of damage has the verdict that docs/ledger-format.md gives it. The exports are signed anew where a damage is to be
found behind the signature, as by somebody who has the key.
"""

import os
import shutil
import subprocess
import sys
import unittest

from ledger_export import ELSEWHERE, NEW, OLD, STRANGER, TOOLS, ZEROS, Case, Ledger, Signer, answer, canonical, replace


class Good(Case):
    def test_exports(self):
        self.verdict("ok", self.write())
        self.verdict("ok", TOOLS.parent / "docs" / "ledger-example")

    def test_every_size(self):
        for extra in range(9):
            ledger = Ledger()
            for _ in range(extra):
                ledger.add("dest:erp", "destination.resumed")
            export = self.write(ledger)
            for size in range(1, len(ledger.lines) + 1):
                with self.subTest(size=size, of=len(ledger.lines)):
                    signer = OLD if size < 9 else NEW
                    self.verdict("ok", export, *self.outside(signer.note(ledger.text(size))))

    def test_what_others_add(self):
        text = Ledger().text() + "extension — line\n"
        witness = Signer(9, "witness.example")
        more = "".join(Signer(seed, "witness.example").line(text) for seed in range(10, 109))
        for name, note in {
            "an extension": NEW.note(text),
            "a cosignature": NEW.note(text) + witness.line(text).encode(),
            "a hundred": NEW.note(text) + more.encode(),
            "a wrong signature of another": NEW.note(text) + witness.line("else").encode(),
            "twice": NEW.note(text) + NEW.line(text).encode(),
        }.items():
            with self.subTest(name):
                self.damaged("ok", "checkpoint", lambda _: note, self.write())

    def test_keys_from_outside(self):
        export = self.write()
        self.verdict("ok", export, "--key", NEW.text)
        self.verdict("ok", export, "--key", STRANGER.text, "--key", NEW.text)
        self.verdict("bad checkpoint -", export, "--key", STRANGER.text)
        self.verdict("bad checkpoint -", export, "--key", ELSEWHERE.text)

    def test_no_verdict(self):
        export = self.write()
        nowhere = self.folder / "nowhere"
        for arguments in [
            [nowhere],
            [export / "leaves"],
            ["--checkpoint", nowhere, export],
            ["--checkpoint", "", export],
            [],
            [export, export],
            ["--key", "x", export],
            ["--key", NEW.text + " ", export],
            ["--nothing", export],
        ]:
            self.assertEqual(("", 2), answer(*arguments))

    def test_as_a_program(self):
        def run(*arguments):
            done = subprocess.run(
                [sys.executable, TOOLS / "verify_ledger.py", *arguments], capture_output=True, text=True
            )
            return done.stdout.split("\n")[0], done.returncode

        self.assertEqual(run("--help")[1], 0)
        self.assertEqual(run(self.write()), ("ok", 0))
        self.assertEqual(run(self.folder), ("bad keys -", 1))
        self.assertEqual(run(self.folder / "nowhere"), ("", 2))

    def test_a_long_record_and_a_deep_one(self):
        ledger = Ledger()
        ledger.add("x", "x", filler="")
        bare = len(ledger.lines.pop())
        for size, expected in [(65_535, "ok"), (65_536, "bad record 12")]:
            self.resigned(expected, lambda ledger: ledger.add("x", "x", filler="x" * (size - bare)))
        for depth, expected in [(127, "ok"), (128, "bad record 12"), (20_000, "bad record 12")]:

            def deep(ledger):
                ledger.add("x", "x", value="here")
                ledger.lines[-1] = ledger.lines[-1].replace(b'"here"', b"[" * (depth - 2) + b"]" * (depth - 2))

            self.resigned(expected, deep)


class Lines(Case):
    def test_leaves(self):
        self.kinds(
            "bad leaves -",
            "leaves",
            {
                "missing": lambda _: None,
                "empty": lambda _: b"",
                "one short": lambda data: data[:-65],
                "one more": lambda data: data + data[:65],
                "no line feed": lambda data: data[:-1],
                "upper case": lambda data: data.upper(),
                "another": lambda data: b"0" * 64 + data[64:],
                "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
                "line feed": lambda data: data + b"\n",
                "swapped": lambda data: data[65:130] + data[:65] + data[130:],
                "no UTF-8": lambda data: b"\xff" + data[1:],
            },
        )

        def both(export):
            (export / "leaves").write_bytes(b"")
            path = export / "records.jsonl"
            path.write_bytes(path.read_bytes().replace(b"2026-01-01T00:00:00", b"2026-01-01T00:00:01"))

        export = self.write()
        both(export)
        self.verdict("bad chain 2", export)
        export = self.write()
        (export / "leaves").unlink()
        path = export / "records.jsonl"
        lines = path.read_bytes().split(b"\n")
        path.write_bytes(b"\n".join([*lines[:11], lines[11].replace(b"paused", b"closed"), b""]))
        self.verdict("bad root -", export)

    def test_altered_lines(self):
        def lines(change):
            def changed(data):
                before = data.split(b"\n")[:-1]
                return b"".join(line + b"\n" for line in change(before))

            return changed

        for expected, kinds in {
            "bad changed 4": {
                "a byte": lines(lambda x: [*x[:4], x[4].replace(b"ready", b"READY"), *x[5:]]),
                "a member more": lines(lambda x: [*x[:4], x[4].replace(b'"v":1', b'"v":1,"w":1'), *x[5:]]),
                "another stream": lines(lambda x: [*x[:4], x[4].replace(b"cmd:1", b"cmd:9"), *x[5:]]),
            },
            "bad order 4": {
                "deleted": lines(lambda x: x[:4] + x[5:]),
                "swapped": lines(lambda x: [*x[:4], x[5], x[4], *x[6:]]),
            },
            "bad order 5": {"twice": lines(lambda x: x[:5] + x[4:])},
            "bad order 0": {"first gone": lines(lambda x: x[1:]), "backwards": lines(lambda x: x[::-1])},
            "bad missing 9": {"tail cut": lines(lambda x: x[:9])},
            "bad missing 0": {"empty": lambda _: b"", "missing": lambda _: None},
            "bad beyond 12": {"one more": lines(lambda x: [*x, x[11].replace(b'"idx":11', b'"idx":12')])},
            "bad order 12": {"last one twice": lines(lambda x: [*x, x[11]])},
            "bad record 12": {
                "an empty line": lambda data: data + b"\n",
                "half a line": lambda data: data + b'{"actor"',
                "a space": lambda data: data + b" ",
            },
            "bad record 11": {"no line feed": lambda data: data[:-1], "cut": lambda data: data[:-9]},
            "bad record 0": {
                "CRLF": replace("\n", "\r\n"),
                "BOM": lambda data: b"\xef\xbb\xbf" + data,
                "an empty line first": lambda data: b"\n" + data,
                "zero bytes": lambda data: bytes(len(data)),
                "without end": lambda _: b"x" * 200_000,
            },
        }.items():
            self.kinds(expected, "records.jsonl", kinds)

    def test_spelling(self):
        """Each line is signed as it is, so that nothing but its spelling is wrong."""

        def at_2(old, new):
            def change(ledger):
                ledger.lines[2] = replace(old, new)(ledger.lines[2])

            return change

        for kind, change in {
            "space": at_2('"v":1', '"v": 1'),
            "space at the end": at_2('"v":1}', '"v":1} '),
            "order": at_2('"v":1', '"a":1'),
            "twice": at_2('"v":1', '"v":1,"v":1'),
            "twice, deep": at_2('"to":"ready"', '"to":"ready","to":"ready"'),
            "escape": at_2("ready", "re\\u0061dy"),
            "slash": at_2("/", "\\/"),
            "short escape": at_2("ready", "\\u000a"),
            "upper case": at_2("\\u001f", "\\u001F"),
            "raw control": at_2("\\u001f", b"\x1f"),
            "del": at_2(b"\x7f", "\\u007f"),
            "pair": at_2("\U0001f600", "\\ud83d\\ude00"),
            "lone surrogate": at_2("\U0001f600", "\\ud83d"),
            "surrogate in UTF-8": at_2("\U0001f600", b"\xed\xa0\x80"),
            "surrogate in a name": at_2('"to"', '"\\ud83d"'),
            "no UTF-8": at_2("ready", b"\xff"),
            "overlong": at_2("/", b"\xc0\xaf"),
            "cut": at_2("}", ""),
            "a tail": at_2('"v":1}', '"v":1}{}'),
            **{
                "number " + number: at_2('"tenant":0', '"tenant":' + number)
                for number in (
                    "0.0",
                    "1e3",
                    "-0",
                    "01",
                    "+1",
                    "1.",
                    ".5",
                    "NaN",
                    "Infinity",
                    "-Infinity",
                    str(2**53),
                    str(-(2**53)),
                    "9" * 5000,
                    "- 1",
                    "0x1",
                    "٣",
                    "1E0",
                    "-",
                )
            },
        }.items():
            with self.subTest(kind):
                self.resigned("bad record 2", change)
        for number in (str(2**53 - 1), str(1 - 2**53), "-1"):
            self.resigned(
                "ok",
                lambda ledger: ledger.lines.__setitem__(
                    11, replace('"tenant":0', '"tenant":' + number)(ledger.lines[11])
                ),
            )

    def test_names_are_sorted_by_utf16(self):
        def swap(ledger):
            ledger.lines[9] = replace('"\U0001f600":1,"\uff5e":2', '"\uff5e":2,"\U0001f600":1')(ledger.lines[9])

        self.resigned("bad record 9", swap)

    def test_fields(self):
        def of_2(**fields):
            def change(ledger):
                record = ledger.record(2) | fields
                ledger.lines[2] = canonical({name: value for name, value in record.items() if value != "gone"}).encode()

            return change

        for field in ("v", "idx", "stream", "sseq", "prev", "ts", "type", "body"):
            for value in (
                ("gone", None, True, [], -1, [1])
                + ((1, {}) if field in ("stream", "prev", "ts", "type") else ())
                + (("text",) if field in ("v", "idx", "sseq", "body", "prev") else ())
            ):
                with self.subTest(field=field, value=value):
                    self.resigned("bad record 2", of_2(**{field: value}))
        for fields in (
            {"v": 2},
            {"v": 0},
            {"prev": "A" * 64},
            {"prev": "a" * 63},
            {"prev": ZEROS + "\n"},
            {"prev": "٣" * 64},
        ):
            with self.subTest(fields):
                self.resigned("bad record 2", of_2(**fields))
        self.resigned("bad order 2", of_2(idx=3))
        for fields in (
            {"sseq": 0},
            {"sseq": 2},
            {"prev": ZEROS},
            {"sseq": 0, "prev": ZEROS},
            {"stream": "cmd:1"},
            {"stream": "cmd:9"},
            {"stream": "dest:erp", "sseq": 0},
            {"stream": "é", "prev": ZEROS},
        ):
            with self.subTest(fields):
                self.resigned("bad chain 2", of_2(**fields))

        def last(**fields):
            return lambda ledger: ledger.lines.__setitem__(11, canonical({**ledger.record(11), **fields}).encode())

        self.resigned("ok", last(ts="", type="", stream="", trace="no object", actor=None, clock=1, tenant=[]))
        self.resigned(
            "ok",
            lambda ledger: ledger.lines.__setitem__(
                11,
                canonical(
                    {
                        name: value
                        for name, value in ledger.record(11).items()
                        if name not in ("trace", "actor", "clock", "tenant")
                    }
                ).encode(),
            ),
        )

    def test_a_forked_stream(self):
        def fork(ledger):
            state = ledger.streams["cmd:1"]
            ledger.add("cmd:1", "command.state", to="succeeded")
            ledger.streams["cmd:1"] = state
            ledger.add("cmd:1", "command.state", to="failed")

        self.resigned("bad chain 13", fork)


class End(Case):
    def test_retention(self):
        ledger = Ledger()
        ledger.retain(8)
        self.verdict("ok", self.write(ledger))
        self.verdict("ok", self.write(ledger), *self.outside(NEW.note(ledger.text(12))))
        ledger.first = 9
        self.verdict("bad missing 8", self.write(ledger))
        ledger.first = 7
        self.verdict("bad missing 7", self.write(ledger))
        ledger.first, ledger.payloads = 13, {}
        self.verdict("bad missing 0", self.write(ledger))
        for first in (20, 2**53 - 1):  # the latter is beyond what a file system can seek to
            ledger.first = first
            self.verdict("bad missing 0", self.write(ledger))
        self.resigned("bad missing 0", lambda ledger: setattr(ledger, "first", 3))
        self.resigned(
            "bad missing 0", lambda ledger: ledger.add("ledger:retention", "retention.applied", first=3, keys=[])
        )
        self.resigned("ok", lambda ledger: ledger.add("ledger:retention", "retention.applied", first="3"))

    def test_the_last_retention_counts(self):
        def twice(ledger):
            ledger.retain(8)
            ledger.retain(9)

        self.resigned("ok", twice)

        def back(ledger):
            twice(ledger)
            ledger.first = 8

        self.resigned("bad missing 8", back)

    def test_leaves_with_retention(self):
        ledger = Ledger()
        ledger.retain(8)
        for name, change, expected in (
            ("leaves", lambda data: data[:-65], "bad root -"),
            ("leaves", lambda _: None, "bad root -"),
            ("records.jsonl", replace("asked", "ASKED"), "bad changed 10"),
        ):
            self.damaged(expected, name, change, self.write(ledger))

    def test_a_stream_that_begins_before(self):
        def retained(ledger):
            ledger.retain(8)
            ledger.lines[9] = canonical({**ledger.record(9), "sseq": 0}).encode()

        self.resigned("bad chain 9", retained)

    def test_key(self):
        self.resigned("bad key -", lambda ledger: None, signer=OLD)
        self.resigned("bad checkpoint -", lambda ledger: None, signer=STRANGER)
        self.resigned("bad key -", lambda ledger: ledger.keys.append(STRANGER.text), signer=STRANGER)
        self.resigned("bad key -", lambda ledger: ledger.add("x", "key.retired", verifier=NEW.text))
        self.resigned(
            "bad key -",
            lambda ledger: (
                ledger.add("x", "key.retired", verifier=NEW.text),
                ledger.add("x", "key.added", verifier=NEW.text),
            ),
        )
        self.resigned("ok", lambda ledger: ledger.add("x", "key.retired", verifier=[NEW.text]))
        self.resigned(
            "bad key -",
            lambda ledger: (ledger.keys.append(STRANGER.text), ledger.add("x", "key.added", verifier=[STRANGER.text])),
            signer=STRANGER,
        )
        self.resigned(
            "bad key -",
            lambda ledger: (ledger.keys.append(STRANGER.text), ledger.add("x", "key.changed", verifier=STRANGER.text)),
            signer=STRANGER,
        )
        self.resigned(
            "ok",
            lambda ledger: (ledger.keys.append(STRANGER.text), ledger.add("x", "key.added", verifier=STRANGER.text)),
            signer=STRANGER,
        )

    def test_keys_of_a_retention(self):
        def retain(keys):
            def change(ledger):
                ledger.keys.append(STRANGER.text)
                ledger.add("ledger:retention", "retention.applied", first=0, keys=keys)

            return change

        self.resigned("ok", retain([STRANGER.text]), signer=STRANGER)
        for keys in (STRANGER.text, {STRANGER.text: 1}, [[STRANGER.text]], 5, None, []):
            self.resigned("bad key -", retain(keys), signer=STRANGER)
        ledger = Ledger()
        retain([STRANGER.text])(ledger)
        self.verdict("ok", self.write(ledger), *self.outside(STRANGER.note(ledger.text(1))))

    def test_an_empty_tree(self):
        ledger = Ledger()
        ledger.lines, ledger.payloads = [], {}
        self.verdict("bad key -", self.write(ledger))


class Payloads(Case):
    def change(self, expected, change):
        """`change` takes the folder and the paths of the payloads of records 1, 3 and 5."""
        ledger, export = Ledger(), self.write()
        folder = export / "payloads"
        change(folder, *(folder / ledger.body(idx)["args"][0]["deep"]["commit"] for idx in (1, 3, 5)))
        self.verdict(expected, export)

    def test_damage(self):
        def salt(path):
            return path.with_name(path.name + ".salt")

        def swap(one, other):
            kept = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(kept)

        def remove(*paths):
            for path in paths:
                path.unlink()

        def link(path):
            path.rename(path.parent.parent / "moved")
            path.symlink_to("../moved")

        for expected, kinds in {
            "bad payload 3": {
                "payload altered": lambda _, a, b, c: b.write_bytes(b"argz"),
                "payload empty": lambda _, a, b, c: b.write_bytes(b""),
                "payload longer": lambda _, a, b, c: b.write_bytes(b"args\n"),
                "payload missing": lambda _, a, b, c: remove(b),
                "salt missing": lambda _, a, b, c: remove(salt(b)),
                "both missing": lambda _, a, b, c: remove(b, salt(b)),
                "salts swapped": lambda _, a, b, c: swap(salt(b), salt(c)),
                "the earlier counts": lambda _, a, b, c: remove(b, c),
                "salt of zeros": lambda _, a, b, c: salt(b).write_text(ZEROS + "\n"),
                "salt without line feed": lambda _, a, b, c: salt(b).write_bytes(salt(b).read_bytes()[:-1]),
                "salt with two": lambda _, a, b, c: salt(b).write_bytes(salt(b).read_bytes() + b"\n"),
                "salt in upper case": lambda _, a, b, c: salt(b).write_bytes(
                    salt(b).read_bytes().replace(b"0b", b"0B")
                ),
                "salt empty": lambda _, a, b, c: salt(b).write_bytes(b""),
                "salt no text": lambda _, a, b, c: salt(b).write_bytes(b"\xff" * 65),
                "link": lambda _, a, b, c: link(b),
                "linked salt": lambda _, a, b, c: link(salt(b)),
                "a folder": lambda _, a, b, c: (remove(b), b.mkdir()),
            },
            "bad payload 1": {
                "all gone": lambda folder, *_: shutil.rmtree(folder),
                "folder linked": lambda folder, *_: link(folder),
                "one half of what was erased": lambda folder, *_: (
                    folder / Ledger().body(1)["input"]["commit"]
                ).write_bytes(b"x"),
                "the other half": lambda folder, *_: (
                    folder / (Ledger().body(1)["input"]["commit"] + ".salt")
                ).write_text(ZEROS + "\n"),
                "a file for the folder": lambda folder, *_: (shutil.rmtree(folder), folder.write_bytes(b"")),
            },
            "bad stray -": {
                "another file": lambda folder, *_: (folder / "x").write_bytes(b""),
                "a hidden one": lambda folder, *_: (folder / ".x").write_bytes(b""),
                "a folder": lambda folder, *_: (folder / "x").mkdir(),
                "a payload of nobody": lambda folder, *_: (folder / ZEROS).write_bytes(b""),
                "a name that is no text": lambda folder, *_: open(os.fsencode(folder) + b"/\xff", "wb").close(),
                "upper case": lambda folder, a, b, c: (folder / a.name.upper()).write_bytes(b"args"),
                "a dangling link": lambda folder, *_: (folder / "x").symlink_to("nowhere"),
            },
        }.items():
            for kind, change in kinds.items():
                with self.subTest(kind):
                    self.change(expected, change)

    def test_erased(self):
        ledger = Ledger()
        data, salt = b'{"amount":0}', bytes(32)
        ledger.payloads[ledger.body(1)["input"]["commit"]] = data, salt
        self.verdict("ok", self.write(ledger))  # it may come back

        def erase(kind, of=lambda commit: commit):
            def change(ledger):
                commit = ledger.body(3)["input"]["commit"]
                del ledger.payloads[commit]
                ledger.add("x", kind, erased=of(commit))

            return change

        self.resigned("ok", erase("redaction.applied"))
        self.resigned("bad payload 3", erase("redaction.planned"))
        self.resigned("bad payload 3", erase("redaction.applied", lambda commit: [commit]))
        self.resigned("bad payload 3", erase("redaction.applied", lambda commit: ZEROS))

    def test_a_link_for_what_was_erased(self):
        export = self.write()
        (export / "payloads" / Ledger().body(1)["input"]["commit"]).symlink_to("../leaves")
        self.verdict("bad stray -", export)

    def test_what_stands_for_a_payload(self):
        for body in (
            {"commit": ZEROS},
            {"x": {"commit": ZEROS}},
            {"x": [[{"commit": ZEROS, "other": 1}]]},
            {"commit": 1, "x": {"commit": {"commit": ZEROS}}},
        ):
            self.resigned("bad payload 12", lambda ledger: ledger.add("x", "x", **body))
        for body in (
            {"commit": ZEROS[1:]},
            {"commit": "A" * 64},
            {"commit": None},
            {"commit": [ZEROS]},
            {"x": "commit", "y": ZEROS},
            {"Commit": ZEROS},
            {"commit": "../keys.json"},
        ):
            self.resigned("ok", lambda ledger: ledger.add("x", "x", **body))

    def test_one_payload_of_two_records(self):
        def again(ledger):
            ledger.add("x", "x", input=ledger.body(3)["input"])

        self.resigned("ok", again)


class EveryByte(Case):
    def test_no_altered_byte_goes_through(self):
        """Every byte of records, leaves and payloads, altered one at a time: never `ok`, and always an answer."""
        export = self.write()
        for path in sorted(export.rglob("*")):
            if not path.is_file() or path.name == "keys.json":
                continue
            good = path.read_bytes()
            step = 1 if os.environ.get("LEDGER_EVERY_BYTE") else max(1, len(good) // 40)
            for place in range(0, len(good), step):
                path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
                first, code = answer(export)
                self.assertRegex(first, r"^bad [a-z]+ (\d+|-)$", (path.name, place))
                self.assertEqual(code, 1)
            path.write_bytes(good)
        self.verdict("ok", export)


if __name__ == "__main__":
    unittest.main()
