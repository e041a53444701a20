"""Verifies an export of a Wayhold ledger, by nothing but docs/ledger-format.md, which explains every PROBLEM.

The first line of the answer is `ok`, or `bad PROBLEM RECORD` with the index of the first bad record (`-` for none).
Exits with 0 for ok, 1 for bad, and 2 without an answer: wrong usage, or a file that cannot be read. Needs the package
`cryptography`. Nothing in an export is trusted; what is kept in memory is an entry for each stream, key and payload."""
import argparse, base64, collections, contextlib, functools, hashlib, hmac, json, os, re, stat
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

NUMBERS = 2**53  # the size of every integer is below this
LINE = 65_535  # bytes of a record, without its line feed
DEPTH = 127  # objects and lists within each other, the outermost included
SMALL = 1 << 20  # bytes of keys.json or of a checkpoint, which are read whole
HASH_LINE = re.compile(b"[0-9a-f]{64}\n")
NAME = re.compile("[^+\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")  # no Unicode white space
Key = collections.namedtuple("Key", "text name id public")
Checkpoint = collections.namedtuple("Checkpoint", "origin size root key")

class Bad(ValueError): """Something is not as the page says: the problem, and the record or `-`."""
def need(good, problem=None, record="-"):
    if not good:
        raise Bad(problem, record)
def attempt(problem, record, read, *arguments):
    try:
        return read(*arguments)
    except (ValueError, RecursionError):
        raise Bad(problem, record) from None

def verify(folder, given, outside):
    """Takes the page's steps in their order; raises `Bad` with the first finding."""
    first, keys = attempt("keys", "-", read_keys, regular(folder, "keys.json"), given)
    checkpoint = attempt("checkpoint", "-", read_checkpoint, regular(folder, "checkpoint"), keys)
    outside = outside and attempt("outside", "-", read_checkpoint, outside, keys)
    need(not outside or outside.origin == checkpoint.origin, "outside")
    leaves, outside_root = read_leaves(regular(folder, "leaves"), checkpoint, outside, first)
    expected, tree, streams, held = first, [], {}, 0
    introduced, retired, named, erased = {}, {}, {}, set()
    records = regular(folder, "records.jsonl")
    while records and (line := records.readline(LINE + 2)):
        record = attempt("record", expected, read_record, line)
        leaf = hashlib.sha256(b"\0" + line[:-1]).digest()
        need(record["idx"] == expected, "order", expected)
        need(expected < checkpoint.size, "beyond", expected)
        need(not leaves or leaves.read(65)[:64] == leaf.hex().encode(), "changed", expected)
        stream, here = record["stream"], (record["sseq"], record["prev"])
        begins = here == (0, "0" * 64) or here[0] > 0 and first > 0
        need(here == streams[stream] if stream in streams else begins, "chain", expected)
        streams[stream] = here[0] + 1, leaf.hex()
        grow(tree, expected - first + 1, leaf)
        kind, body = record["type"], record["body"]
        {"key.added": introduced, "key.retired": retired}.get(kind, {}).setdefault(str(body.get("verifier")), expected)
        if kind == "retention.applied":
            held = body["first"] if is_index(body.get("first")) else held
            introduced.update((str(key), 0) for key in (body["keys"] if isinstance(body.get("keys"), list) else []))
        if kind == "redaction.applied":
            erased.add(str(body.get("erased")))
        for commit in (value["commit"] for value in objects(body) if is_hash(value.get("commit"))):
            named.setdefault(commit, expected)
        expected += 1
    need(expected >= checkpoint.size, "missing", expected)
    need(first == held, "missing", min(first, held))
    need(leaves or first > 0 or root_of(tree) != checkpoint.root, "leaves")
    need(leaves, "root")
    for signed in filter(None, [checkpoint, outside]):
        need(introduced.get(signed.key.text, NUMBERS) < signed.size <= retired.get(signed.key.text, NUMBERS), "key")
    need(not outside or outside.size <= checkpoint.size, "truncated", checkpoint.size)
    need(not outside or outside.root == outside_root, "forked")
    check_payloads(os.path.join(folder, "payloads"), named, erased)

def regular(folder, name):
    """The opened file, or None when there is none: links, folders and devices are no files of an export."""
    path = os.path.join(folder, name)
    return open(path, "rb") if os.path.lexists(path) and stat.S_ISREG(os.lstat(path).st_mode) else None
def read_small(file):
    need(file and len(data := file.read(SMALL + 1)) <= SMALL)
    return data.decode()

def read_json(text, canonical):
    """Strict JSON, and in canonical form where that is asked for. Numbers that are not integers of ours become None."""
    def number(text):
        ours = re.fullmatch("0|-?[1-9][0-9]{0,15}", text) and abs(int(text)) < NUMBERS
        need(ours or not canonical and text[-1] not in "Ny")  # as in NaN and Infinity, which only Python reads
        return int(text) if ours else None
    def members(pairs):
        names = [name.encode("utf-16-be") for name, _ in pairs]  # a lone surrogate is a ValueError, here and below
        need(len(set(names)) == len(names) and (names == sorted(names) or not canonical))
        return dict(pairs)
    value = json.loads(text, object_pairs_hook=members, parse_int=number, parse_float=number, parse_constant=number)
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))  # with the members as they came
    need(written.encode() == text.encode() or not canonical)
    list(objects(value))  # measures the depth
    return value

def objects(value):
    """Every object in a JSON value, itself included; a ValueError where they are too deep within each other."""
    level, depth = [value], 0
    while level := [inner for inner in level if isinstance(inner, (dict, list))]:
        need((depth := depth + 1) <= DEPTH)
        yield from (inner for inner in level if isinstance(inner, dict))
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]

def is_index(value): return type(value) is int and value >= 0  # not isinstance: to Python, True is an int
def is_hash(value): return isinstance(value, str) and HASH_LINE.fullmatch(value.encode() + b"\n") is not None

def read_record(line):
    need(line.endswith(b"\n") and len(line) <= LINE + 1)
    record = read_json(line[:-1].decode(), canonical=True)
    need(isinstance(record, dict) and isinstance(record.get("body"), dict) and is_hash(record.get("prev")))
    need(all(is_index(record.get(field)) for field in ("v", "idx", "sseq")) and record["v"] == 1)
    need(all(isinstance(record.get(field), str) for field in ("stream", "ts", "type")))
    return record

def unbase64(text):
    data = base64.b64decode(text, validate=True)
    need(base64.b64encode(data).decode() == text)  # there is only one way to write it
    return data

def read_key(text):
    name, key_id, encoded = text.split("+", 2)
    public = unbase64(encoded)
    need(NAME.fullmatch(name) and len(public) == 33 and public[0] == 1)
    need(key_id == hashlib.sha256(name.encode() + b"\n" + public).hexdigest()[:8])
    return Key(text, name, bytes.fromhex(key_id), Ed25519PublicKey.from_public_bytes(public[1:]))

def read_keys(file, given):
    """`first`, and the keys that count: those given, or else those of keys.json."""
    value = read_json(read_small(file), canonical=False)
    need(isinstance(value, dict) and is_index(value.get("first")) and isinstance(value.get("keys"), list))
    listed = [read_key(str(text)) for text in value["keys"]]
    return value["first"], given or listed

def read_checkpoint(file, keys):
    """The checkpoint, with the first of the keys that it is signed by."""
    note = read_small(file)
    text, divided, below = note.rpartition("\n\n")
    need(divided and below.endswith("\n") and not re.search("[\0-\x09\x0b-\x1f]", note))
    lines = [line.split(" ") for line in below[:-1].split("\n")]
    signatures = [(name, unbase64(encoded)) for dash, name, encoded in lines if dash == "\u2014" and NAME.fullmatch(name)]
    origin, size, root, *more = text.split("\n")
    need(origin and "" not in more and re.fullmatch("0|[1-9][0-9]{0,15}", size) and int(size) < NUMBERS)
    need(len(unbase64(root)) == 32 and len(signatures) == len(lines) <= 100 and all(len(data) > 4 for _, data in signatures))
    for key in (key for key in keys if key.name == origin):
        own = [data[4:] for name, data in signatures if (name, data[:4]) == (key.name, key.id)]
        with contextlib.suppress(InvalidSignature):  # perhaps another key did
            if [key.public.verify(signature, text.encode() + b"\n") for signature in own]:
                return Checkpoint(origin, int(size), unbase64(root), key)
    raise ValueError("signed by none of the keys")

def read_leaves(file, checkpoint, outside, first):
    """The leaf hashes from `first` on, or None where they are not the checkpoint's; and their root at outside's size."""
    tree, size, outside_root, line = [], 0, None, None
    while file and size <= checkpoint.size:
        outside_root = root_of(tree) if outside and outside.size == size else outside_root
        if not HASH_LINE.fullmatch(line := file.read(65)):
            break
        size += 1
        grow(tree, size, bytes.fromhex(line.decode()))
    good = line == b"" and size == checkpoint.size and root_of(tree) == checkpoint.root
    return file if good and file.seek(65 * min(first, size)) >= 0 else None, outside_root

# RFC 6962's tree, kept as the roots of its full subtrees, the largest first.
def node(left, right): return hashlib.sha256(b"\x01" + left + right).digest()
def root_of(tree):
    return functools.reduce(lambda right, left: node(left, right), tree[::-1]) if tree else hashlib.sha256().digest()
def grow(tree, size, leaf):
    tree.append(leaf)
    while size % 2 == 0:  # two neighbours of one size become one
        tree[-2:] = [node(*tree[-2:])]
        size //= 2

def check_payloads(folder, named, erased):
    left = set(os.listdir(folder)) if os.path.isdir(folder) and not os.path.islink(folder) else set()
    for commit, record in named.items():
        payload, salt = (name in left and regular(folder, name) for name in (commit, commit + ".salt"))
        if payload or salt:
            need(payload and salt and HASH_LINE.fullmatch(line := salt.read(66)), "payload", record)
            mac = hmac.new(bytes.fromhex(line.decode()), digestmod="sha256")
            while chunk := payload.read(1 << 16):
                mac.update(chunk)
            need(mac.hexdigest() == commit, "payload", record)
            left -= {commit, commit + ".salt"}
        need(payload or commit in erased, "payload", record)
    need(not left, "stray")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoint", metavar="FILE", help="a checkpoint of the same ledger, from elsewhere")
    parser.add_argument("--key", action="append", type=read_key, help="trust this public key instead of those in the export")
    parser.add_argument("dir", metavar="DIR", help="the export")
    options = parser.parse_args()
    try:
        os.listdir(options.dir)  # without a folder there is nothing to say
        verify(options.dir, options.key, open(options.checkpoint, "rb") if options.checkpoint is not None else None)
        print("ok")
    except Bad as bad:
        print("bad", *bad.args)
        parser.exit(1)
    except OSError as error:
        parser.exit(2, f"no verdict: {error}\n")
