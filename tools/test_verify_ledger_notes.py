"""Tests of verify_ledger.py: keys.json, and checkpoints in the export and from outside."""

import base64
import hashlib
import json
import os
import unittest

from ledger_export import ELSEWHERE, NEW, OLD, ORIGIN, STRANGER, Case, Ledger, Signer, replace


class Keys(Case):
    def test_file(self):
        good = f'{{"first":0,"keys":["{NEW.text}"]}}'
        texts = {
            "no JSON": "{",
            "empty": "",
            "a list": "[]",
            "more behind": good + "{}",
            "first twice": good.replace("{", '{"first":0,', 1),
            "first twice, escaped": good.replace("{", '{"\\u0066irst":0,', 1),
            "no first": '{"keys":[]}',
            "no keys": '{"first":0}',
            "twice, deep": good.replace("}", ',"x":[{"a":1,"a":1}]}'),
            "keys an object": '{"first":0,"keys":{}}',
            "keys of numbers": '{"first":0,"keys":[1]}',
            "NaN": good.replace("}", ',"x":NaN}'),
            "BOM": "\ufeff" + good,
            "surrogate": good.replace("}", ',"x":"\\ud800"}'),
            "deep": good.replace("}", ',"x":' + "[" * 200 + "]" * 200 + "}"),
            "bottomless": "[" * 500_000,
            "large": good + " " * (1 << 20),
        }
        for first in ("-1", "-0", "1.0", "1e0", "0.0", "true", "null", '"0"', str(2**53), "9" * 5000, "00", "[]"):
            texts["first " + first[:20]] = good.replace(":0", ":" + first)
        name, key_id, key = NEW.text.split("+", 2)
        raw = base64.b64decode(key)

        def named(name, raw=raw):
            return f"{name}+{hashlib.sha256(name.encode() + bytes([10]) + raw).hexdigest()[:8]}+{base64.b64encode(raw).decode()}"

        for wrong in (
            "",
            "a+b",
            f"{name}+{OLD.id.hex()}+{key}",
            f"{name}+{key_id.upper()}+{key}",
            NEW.text + "\\n",
            NEW.text + "=",
            f"{name}+{key_id}+{key[:-4]}",
            named("with space"),
            named("with\u3000space"),
            named(""),
            named(name, b"\x02" + raw[1:]),
            named(name, raw[:-1]),
            named(name, raw + b"x"),
            f"{name}+{key_id}+{key[:9]} {key[9:]}",
            f"{name}+{key_id}+{key[:9]}\\n{key[9:]}",
        ):
            self.assertNotIn(NEW.text + '"', f'"{wrong}"')
            texts["key " + wrong[:60]] = good.replace(NEW.text, wrong)
        self.kinds(
            "bad keys -", "keys.json", {kind: lambda _, text=text: text.encode() for kind, text in texts.items()}
        )
        self.kinds("bad keys -", "keys.json", {"missing": lambda _: None, "no UTF-8": replace("first", b"first\xff")})
        self.kinds(
            "ok",
            "keys.json",
            {
                "spaced": lambda _: json.dumps({"first": 0, "keys": [NEW.text], "other": 1.5e300}, indent=1).encode(),
                "without a line feed": lambda data: data.strip(),
            },
        )

    def test_a_key_that_is_no_point_of_the_curve(self):
        """It never signs, and does no harm beside one that does."""
        raw = b"\x01" + (2).to_bytes(32, "little")
        key_id = hashlib.sha256(ORIGIN.encode() + b"\n" + raw).hexdigest()[:8]
        listed = {"first": 0, "keys": [f"{ORIGIN}+{key_id}+{base64.b64encode(raw).decode()}", NEW.text]}
        self.damaged("ok", "keys.json", lambda _: json.dumps(listed).encode(), self.write())
        note = Ledger().text() + f"\n— {ORIGIN} {base64.b64encode(bytes.fromhex(key_id) + bytes(64)).decode()}\n"
        listed["keys"].pop()
        export = self.write()
        (export / "keys.json").write_text(json.dumps(listed))
        self.damaged("bad checkpoint -", "checkpoint", lambda _: note.encode(), export)

    def test_the_file_is_needed_with_keys_from_outside(self):
        export = self.write()
        for text in ('{"keys":[]}', '{"first":0}', '{"first":0,"keys":["x"]}', "{"):
            self.damaged("bad keys -", "keys.json", lambda _: text.encode(), export, "--key", NEW.text)
        self.damaged("bad keys -", "keys.json", lambda _: None, export, "--key", NEW.text)
        self.damaged("ok", "keys.json", lambda _: b'{"first":0,"keys":[]}', export, "--key", NEW.text)

    def test_links_are_no_files(self):
        for name, expected in {
            "keys.json": "bad keys -",
            "checkpoint": "bad checkpoint -",
            "records.jsonl": "bad missing 0",
            "leaves": "bad leaves -",
        }.items():
            for make in (
                lambda path, other: path.symlink_to(other),
                lambda path, _: path.mkdir(),
                lambda path, _: os.mkfifo(path),
            ):
                export = self.write()
                (export / name).rename(export / "other")
                make(export / name, export / "other")
                self.verdict(expected, export)


class Checkpoint(Case):
    def test_note(self):
        text = Ledger().text()
        note = NEW.note(text)
        origin, size, root64 = text.split("\n")[:3]

        def signed(text):
            return NEW.note(text)

        notes = {
            "empty": b"",
            "CRLF": note.replace(b"\n", b"\r\n"),
            "another size": note.replace(b"\n12\n", b"\n11\n"),
            "another root": note.replace(root64[:8].encode(), b"AAAAAAAA"),
            "no signature": text.encode() + b"\n",
            "no empty line": note.replace(b"\n\n", b"\n"),
            "no line feed": note[:-1],
            "one more": note + b"\n",
            "hyphen": note.replace("—".encode(), b"-"),
            "two spaces": note.replace("— ".encode(), "—  ".encode()),
            "trailing space": note[:-1] + b" \n",
            "no UTF-8": signed(text + "x\n").replace(b"\nx\n", b"\n\xff\n"),
            "a tab": signed(text + "a\tb\n"),
            "an empty line": signed(text + "\nmore\n"),
            "a zero byte": signed(text + "\0\n"),
            "empty line at the end": signed(text + "\n"),
            "two lines": signed(f"{origin}\n{size}\n"),
            "no origin": signed(f"\n{size}\n{root64}\n"),
            "another origin": signed(text.replace("test", "text")),
            "stranger": STRANGER.note(text),
            "of another ledger": ELSEWHERE.note(text),
            "altered signature": note[:-10] + (b"A" if note[-10:-9] != b"A" else b"B") + note[-9:],
            "one good, one bad": note + NEW.line("else").encode(),
            "one bad, one good": NEW.note(text).replace(
                NEW.line(text).encode(), (NEW.line("else") + NEW.line(text)).encode()
            ),
            "short signature": text.encode()
            + f"\n— {ORIGIN} {base64.b64encode(NEW.id + b'x' * 63).decode()}\n".encode(),
            "a malformed line": note + b"x\n",
            "line without a signature": note + "— witness.example AAAAAA==\n".encode(),
            "line with a name with plus": note + "— a+b AAAAAAAA\n".encode(),
            "line with a wide space": note + "— a\u3000b AAAAAAAA\n".encode(),
            "line of bad base64": note + "— witness.example AAAAAA\n".encode(),
            "line of other base64": note + "— witness.example AAAAAAB=\n".encode(),
            "line of URL base64": note + "— witness.example AAAA-AAA\n".encode(),
            "101 lines": note + "".join(Signer(n, "witness.example").line(text) for n in range(10, 110)).encode(),
            "large": signed(text + "x" * (1 << 20) + "\n"),
        }
        for wrong in ("012", "+12", "-12", "12 ", "", "1_2", "٣", "12.0", str(2**53), "9" * 5000, "0x0c"):
            notes["size " + wrong[:20]] = signed(f"{origin}\n{wrong}\n{root64}\n")
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        loose = root64[:-2] + alphabet[alphabet.index(root64[-2]) + 1] + "="
        self.assertEqual(base64.b64decode(loose), base64.b64decode(root64))
        for wrong in (
            root64[:-1],
            root64[:-4],
            loose,
            root64 + "AAAA",
            " " + root64,
            root64 + "=",
            root64[:5] + " " + root64[5:],
            "é" + root64,
        ):
            notes["root " + wrong] = signed(f"{origin}\n{size}\n{wrong}\n")
        changes = {kind: lambda _, note=note: note for kind, note in notes.items()}
        self.kinds("bad checkpoint -", "checkpoint", changes | {"missing": lambda _: None})
        export = self.write()
        for kind, other in notes.items():
            with self.subTest("from outside", kind=kind):
                self.verdict("bad outside -", export, *self.outside(other))

    def test_from_outside(self):
        ledger = Ledger()
        other = Ledger()
        other.lines[6] = replace("ready", "READY")(other.lines[6])
        longer = Ledger()
        longer.add("dest:erp", "destination.resumed")
        export = self.write()
        self.verdict("ok", export, *self.outside(NEW.note(ledger.text())))
        self.verdict("bad truncated 12", export, *self.outside(NEW.note(longer.text())))
        self.verdict("bad forked -", export, *self.outside(NEW.note(other.text())))
        self.verdict("bad forked -", export, *self.outside(OLD.note(other.text(7))))
        self.verdict("ok", export, *self.outside(OLD.note(other.text(6))))
        self.verdict("bad key -", export, *self.outside(NEW.note(ledger.text(7))))
        self.verdict("ok", export, *self.outside(NEW.note(ledger.text(8))))
        self.verdict("ok", export, *self.outside(OLD.note(ledger.text(8))))
        self.verdict("bad key -", export, *self.outside(OLD.note(ledger.text(9))))
        self.verdict("bad key -", export, *self.outside(OLD.note(ledger.text(0))))
        there = ledger.text().replace(ORIGIN, ELSEWHERE.name)
        self.verdict(
            "bad outside -", export, "--key", NEW.text, "--key", ELSEWHERE.text, *self.outside(ELSEWHERE.note(there))
        )


if __name__ == "__main__":
    unittest.main()
