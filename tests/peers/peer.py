"""A decoder and a provider, written from docs/src/protocol.md alone, with nothing but Python's standard library.

    peer.py decode SOCKET                 sends a cache to SOCKET; for each line of token ids it then checks the rows
    peer.py provide --tokens FILE ...     a provider on the shared route

Row r of K at position p holds, in channel c, token * 100 + p + c / 4; V holds half more. The digest is not checked: the
standard library has no BLAKE3.
"""

import argparse
import fcntl
import json
import mmap
import os
import socket
import struct
import sys

WIDTH, CELLS, PAGE = 4, 16, 4096
F32 = 0


def value(part, token, position, channel):
    return token * 100 + position + channel / 4 + (0.5 if part == "v" else 0)


def row(part, token, position, width):
    return struct.pack(f"<{width}f", *(value(part, token, position, channel) for channel in range(width)))


def layout_hash(tensors):
    """Section 6.4."""
    result = 1469598103934665603
    for tensor in tensors:
        for number in [F32, *tensor["ne"], *[1] * (4 - len(tensor["ne"]))]:
            result = (result ^ number) * 1099511628211 % 2**64
    return result


def sealed_memory(size):
    """Section 7."""
    memory = os.memfd_create("python-cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(memory, 0, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return memory


def decode(path):
    memory = sealed_memory(2 * PAGE)
    tensors = [
        {"name": f"cache_{part}_l0", "type": "f32", "ne": [WIDTH, CELLS, 1], "region": 0, "offset": offset}
        for part, offset in [("k", 0), ("v", PAGE)]
    ]
    region = {"fd": 0, "offset": 0, "size": 2 * PAGE, "layout": layout_hash(tensors)}
    header = json.dumps({"version": 1, "regions": [region], "tensors": tensors}).encode()
    message = struct.pack("<I", len(header)) + header
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        sent = socket.send_fds(connection, [message], [memory])
        # Not of nothing: that is a send too, and fails where the receiver has all it wants and has hung up.
        if sent < len(message):
            connection.sendall(message[sent:])
    cells = mmap.mmap(memory, 2 * PAGE, mmap.MAP_SHARED)
    for line in sys.stdin:
        wanted = [
            (offset + position * WIDTH * 4, row(part, int(token), position, WIDTH))
            for part, offset in [("k", 0), ("v", PAGE)]
            for position, token in enumerate(line.split())
        ]
        right = all(cells[start:start + len(bytes_)] == bytes_ for start, bytes_ in wanted)
        print("right" if right else "wrong", flush=True)


def provide(arguments):
    parser = argparse.ArgumentParser()
    for flag in ["--tokens", "--model", "--layout", "--fds"]:
        parser.add_argument(flag, required=True)
    given = parser.parse_args(arguments)
    descriptors = [int(number) for number in given.fds.split(",")]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    with open(given.tokens) as file:
        tokens = [int(line) for line in file]
    with open(given.layout, "rb") as file:
        header = json.loads(file.read())
    for index, region in enumerate(header["regions"]):
        inside = sorted((t for t in header["tensors"] if t["region"] == index), key=lambda t: t["offset"])
        if int(str(region["layout"]), 0) != layout_hash(inside):
            sys.exit(f"region {index}: its layout is not the hash of its tensors")
        descriptor = descriptors[region["fd"]]
        start = region.get("offset", 0)
        if start + region["size"] > os.fstat(descriptor).st_size:
            sys.exit(f"region {index} reaches past its memory")
        # From its start: of a dma-buf, many drivers show the first page wherever a part is mapped.
        memory = mmap.mmap(descriptor, start + region["size"], mmap.MAP_SHARED)
        for tensor in inside:
            if tensor["type"] != "f32":
                sys.exit(f"{tensor['name']} is {tensor['type']}; only f32 is written here")
            part, width = tensor["name"][len("cache_")], tensor["ne"][0]
            for position, token in enumerate(tokens):
                place = start + tensor["offset"] + position * width * 4
                memory[place:place + width * 4] = row(part, token, position, width)
        memory.close()
    print(json.dumps({"n_tokens": len(tokens), "argmax": 0}))


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    decode(*rest) if role == "decode" else provide(rest)
