"""The command line of the search; see the package's docstring."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import fuzz
from fuzz.readers import READERS, mutated
from fuzz.search import CONVERT, Finding, search


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz", description=fuzz.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="files of all chosen readers together")
    parser.add_argument("--slice", default="1/1", metavar="K/N", help="the K-th of N parts of them, from 1 on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", choices=READERS, action="append", help="repeatable; by default all")
    parser.add_argument("--convert", choices=CONVERT, default="all", help="what is read, to no, one or each format")
    parser.add_argument("--only", type=int, help="show one mutation's outcome")
    parser.add_argument("--keep", type=Path, help="write the files of --only into this folder")
    given = parser.parse_args()
    chosen = given.reader or list(READERS)
    if given.only is not None:
        name, data = mutated(chosen[0], given.seed, given.only)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for file, content in READERS[chosen[0]].files(name, data).items():
                (given.keep / file).write_bytes(content)
        print(name, len(data), "bytes:", *search(chosen[0], given.seed, range(given.only, given.only + 1), given.convert))
        return
    part, parts = map(int, given.slice.split("/"))
    each = given.count // len(chosen)
    indices = range(each * (part - 1) // parts, each * part // parts)
    failed = False
    for reader in chosen:
        started = time.perf_counter()
        outcomes, findings = search(reader, given.seed, indices, given.convert)
        rate = len(indices) / (time.perf_counter() - started)
        listed = ", ".join(f"{number} {what}" for what, number in outcomes.most_common() if not what.startswith("!!!"))
        print(f"{reader}: {len(indices)} files, {len(findings)} findings, {rate:.0f} a second; {listed}", flush=True)
        _print(findings, given.seed)
        failed = failed or bool(findings)
    sys.exit(1 if failed else 0)


def _print(findings: list[Finding], seed: int) -> None:
    """Findings of the same words together, with how to see the first of each again."""
    groups: dict[str, list[Finding]] = {}
    for item in findings:
        groups.setdefault(re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "_", item.what)[:120], []).append(item)
    for items in sorted(groups.values(), key=len, reverse=True):
        print(f"  {len(items)} x {items[0].what[:300]}")
        print(f"      again: --reader {items[0].reader} --seed {seed} --only {items[0].index} ({items[0].seed_name})", flush=True)


if __name__ == "__main__":
    main()
