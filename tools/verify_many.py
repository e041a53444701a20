"""Asks verify_ledger.py about many exports in one process, for tests that have hundreds of them.

Standard input has a line for each: its directory, and after a tab the file of a checkpoint from elsewhere, where there is one.
Standard output has the verdict of each on a line of its own, as verify_ledger.py would print it.
"""

import sys

from verify_ledger import Bad, verify


def verdict(directory, checkpoint):
    try:
        if checkpoint:
            with open(checkpoint, "rb") as file:
                verify(directory, None, file)
        else:
            verify(directory, None, None)
    except Bad as bad:
        return " ".join(map(str, ("bad", *bad.args)))
    except OSError as error:
        return f"no verdict: {error}"
    return "ok"


if __name__ == "__main__":
    for line in sys.stdin:
        print(verdict(*line.rstrip("\n").partition("\t")[::2]))
