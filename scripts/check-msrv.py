#!/usr/bin/env python3
"""Checks that no dependency asks for a newer Rust than this workspace promises (rust-version in Cargo.toml).

    python3 scripts/check-msrv.py            exits 1 and names each dependency that does
    python3 scripts/check-msrv.py --print    prints the promised version
"""

import json
import subprocess
import sys


def numbers(version):
    return tuple(int(part) for part in (version.split(".") + ["0", "0"])[:3])


def packages():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    command += ["--filter-platform", "x86_64-unknown-linux-gnu"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    members = set(metadata["workspace_members"])
    ours = [package for package in metadata["packages"] if package["id"] in members]
    others = [package for package in metadata["packages"] if package["id"] not in members]
    return ours, others


def main(arguments):
    ours, others = packages()
    promised = {package["rust_version"] for package in ours}
    if len(promised) != 1 or None in promised:
        sys.exit(f"the workspace's packages do not share one rust-version: {promised}")
    (promise,) = promised
    if arguments == ["--print"]:
        print(promise)
        return
    if arguments:
        sys.exit("usage: check-msrv.py [--print]")
    newer = [p for p in others if p["rust_version"] and numbers(p["rust_version"]) > numbers(promise)]
    for package in newer:
        print(f"{package['name']} {package['version']} asks for Rust {package['rust_version']}, ours is {promise}")
    if newer:
        sys.exit(1)
    silent = sum(1 for package in others if not package["rust_version"])
    print(f"Rust {promise}: none of {len(others)} dependencies asks for more ({silent} do not say)")


main(sys.argv[1:])
