#!/usr/bin/env python3
"""Computes docs/layout-vectors.json, the test vectors of the layout (docs/src/layout.md), or checks it.

    python3 docs/layout-vectors.py            writes the file beside this script
    python3 docs/layout-vectors.py --check    exits 1 and names each difference where the file is wrong

It is written from the specification and from nothing else: standard library only, and no line of it is shared with
the Rust implementation, so that the two can find each other's mistakes.
"""

import json
import pathlib
import sys

ALIGNMENT = 4096
CHUNK_LIMIT = 1 << 30
HASH_START = 1469598103934665603
HASH_PRIME = 1099511628211

# name: ggml number, elements in a block, bytes in a block (ggml/include/ggml.h, ggml/src/ggml-common.h)
TYPES = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34),
    "iq4_nl": (20, 32, 18),
    "bf16": (30, 1, 2),
}

# Known answers, written down before this script was: name of the vector, and (size, hash) of its chunks.
KNOWN = {
    "28 layers, 1024/1024, f16, 20480 cells": [
        (1048576000, 17540425994995006612),
        (1048576000, 17540425994995006612),
        (251658240, 1589745360344459949),
    ],
    "30 layers, 192/192, f16, 4096 cells": [(94371840, 2158479808429355223)],
    "30 layers, 192/192, q8_0, 4096 cells": [(50135040, 4608154211641418403)],
    "2 layers, 36/36, f16, 100 cells": [(32768, 15107967019802935031)],
    "32 layers, 1024/1024, f16, 8192 cells": [(1073741824, 5172325350623451203)],
    "one f32 tensor of 7 elements": [(4096, 11308723307010549171)],
    "no tensor": [(4096, 1469598103934665603)],
}


def round_up(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


def tensor_bytes(tensor):
    _, block_elements, block_bytes = TYPES[tensor["type"]]
    first, *rest = tensor["ne"]
    assert first % block_elements == 0, f"a row of {tensor['name']} is not a whole number of blocks"
    size = first // block_elements * block_bytes
    for dimension in rest:
        size *= dimension
    return size


def mix(value, number):
    return ((value ^ number) * HASH_PRIME) % (1 << 64)


def place(groups):
    """The chunks, and for each tensor in order the chunk and the offset in it."""
    chunks, places = [], []
    for group_index, group in enumerate(groups):
        chunk = None
        for tensor in group:
            taken = round_up(max(tensor_bytes(tensor), tensor.get("alloc", 0)))
            if chunk is None or chunk["size"] + taken > CHUNK_LIMIT:
                chunk = {"size": 0, "hash": HASH_START, "group": group_index}
                chunks.append(chunk)
            places.append({"region": len(chunks) - 1, "offset": chunk["size"]})
            chunk["size"] += taken
            number, _, _ = TYPES[tensor["type"]]
            for value in [number, *(tensor["ne"] + [1, 1, 1])[:4]]:
                chunk["hash"] = mix(chunk["hash"], value)
    if not chunks:
        chunks.append({"size": ALIGNMENT, "hash": HASH_START, "group": 0})
    for chunk in chunks:
        chunk["hash"] = str(chunk["hash"])
    return chunks, places


def tensor(name, type_name, ne, alloc=None):
    return {"name": name, "type": type_name, "ne": ne} | ({} if alloc is None else {"alloc": alloc})


def attention(layers, k_width, v_width, k_type, v_type, cells, streams=1):
    return [
        tensor(f"cache_{plane}_l{layer}", type_name, [width, cells, streams])
        for layer in layers
        for plane, type_name, width in (("k", k_type, k_width), ("v", v_type, v_width))
    ]


def recurrent(layers, r_width, s_width, cells):
    return [
        tensor(f"cache_{plane}_l{layer}", "f32", [width, cells])
        for layer in layers
        for plane, width in (("r", r_width), ("s", s_width))
    ]


def inputs():
    half = CHUNK_LIMIT // 2
    yield "28 layers, 1024/1024, f16, 20480 cells", [attention(range(28), 1024, 1024, "f16", "f16", 20480)]
    yield "30 layers, 192/192, f16, 4096 cells", [attention(range(30), 192, 192, "f16", "f16", 4096)]
    yield "30 layers, 192/192, q8_0, 4096 cells", [attention(range(30), 192, 192, "q8_0", "q8_0", 4096)]
    yield "2 layers, 36/36, f16, 100 cells", [attention(range(2), 36, 36, "f16", "f16", 100)]
    yield "32 layers, 1024/1024, f16, 8192 cells", [attention(range(32), 1024, 1024, "f16", "f16", 8192)]
    yield "one f32 tensor of 7 elements", [[tensor("cache_k_l0", "f32", [7])]]
    yield "no tensor", [[]]

    for type_name in TYPES:
        cache = attention(range(2), 128, 96, type_name, type_name, 333)
        yield f"2 layers, 128/96, {type_name}, 333 cells", [cache]
    yield "K in q8_0, V in f16", [attention(range(4), 192, 128, "q8_0", "f16", 512)]
    yield "K in q5_1, V in q4_0", [attention(range(4), 256, 256, "q5_1", "q4_0", 1000)]
    yield "3 layers that are not neighbours", [attention([0, 5, 11], 64, 64, "f16", "f16", 2048)]
    yield "4 streams", [attention(range(3), 64, 64, "f16", "f16", 257, streams=4)]
    yield "a type of its own for one layer", [
        attention([0], 64, 64, "f32", "f32", 100) + attention([1, 2], 64, 64, "bf16", "iq4_nl", 100)
    ]
    yield "all four dimensions", [[tensor("cache_k_l0", "f16", [64, 3, 5, 7])]]

    full = attention([5, 11], 256, 256, "f16", "f16", 4096)
    window = attention([0, 1, 2, 3, 4, 6, 7, 8, 9, 10], 256, 256, "f16", "f16", 768)
    yield "a sliding-window cache beside the full one", [full, window]
    yield "a recurrent state beside a cache", [
        attention([3, 7], 512, 512, "f16", "f16", 1024),
        recurrent([0, 1, 2, 4, 5, 6], 24576, 524288, 1),
    ]
    yield "recurrent layers only", [recurrent(range(3), 9216, 131072, 2)]
    yield "three groups, the middle one without a tensor", [
        attention([0], 64, 64, "f16", "f16", 64),
        [],
        recurrent([1], 100, 1000, 1),
    ]
    yield "two groups that would fit one chunk", [
        [tensor("cache_k_l0", "f16", [64, 64])],
        [tensor("cache_k_l1", "f16", [64, 64])],
    ]

    yield "an allocator that asks for more", [
        [
            tensor("cache_k_l0", "f16", [64, 64], alloc=8192 + 1),
            tensor("cache_v_l0", "f16", [64, 64], alloc=8192),
            tensor("cache_k_l1", "f16", [64, 64], alloc=20000),
            tensor("cache_v_l1", "f16", [64, 64]),
        ]
    ]
    yield "an allocator that asks for less", [
        [tensor("cache_k_l0", "f16", [64, 100], alloc=1), tensor("cache_v_l0", "f16", [64, 100], alloc=1)]
    ]
    yield "an allocator that asks for more than a chunk", [
        [
            tensor("cache_k_l0", "f16", [64, 64], alloc=CHUNK_LIMIT - 8192),
            tensor("cache_v_l0", "f16", [64, 64], alloc=8193),
        ]
    ]

    small = [64, 64]
    yield "one tensor of exactly 2^30 bytes", [[tensor("cache_k_l0", "f32", [1024, 262144])]]
    yield "exactly 2^30 bytes, then one more tensor", [
        [tensor("cache_k_l0", "f32", [1024, 262144]), tensor("cache_v_l0", "f16", small)]
    ]
    yield "one tensor, then exactly 2^30 bytes", [
        [tensor("cache_k_l0", "f16", small), tensor("cache_v_l0", "f32", [1024, 262144])]
    ]
    yield "a tensor over 2^30 bytes between small ones", [
        [
            tensor("cache_k_l0", "f16", small),
            tensor("cache_v_l0", "f16", [1024, 600000]),
            tensor("cache_k_l1", "f16", small),
            tensor("cache_v_l1", "f16", small),
        ]
    ]
    yield "two tensors over 2^30 bytes", [attention([0], 4096, 4096, "f32", "f32", 70000)]
    yield "a tensor over 2^32 bytes", [[tensor("cache_k_l0", "f16", [8192, 300000])]]
    yield "two halves that reach 2^30 only by rounding up", [
        [tensor("cache_k_l0", "f16", [half // 2 - 1000]), tensor("cache_v_l0", "f16", [half // 2 - 1])]
    ]
    yield "two halves, the second one element too long", [
        [tensor("cache_k_l0", "f16", [half // 2]), tensor("cache_v_l0", "f16", [half // 2 + 1])]
    ]


def vectors():
    for name, groups in inputs():
        chunks, places = place(groups)
        yield {"name": name, "groups": groups, "chunks": chunks, "tensors": places}


def lines(items, indent):
    """A JSON array with one item a line."""
    if not items:
        return "[]"
    pad = " " * indent
    return "[\n" + ",\n".join(pad + "  " + json.dumps(item) for item in items) + f"\n{pad}]"


def document():
    entries = []
    for vector in vectors():
        groups = ",\n".join("        " + lines(group, 8) for group in vector["groups"])
        entries.append(
            "    {\n"
            f'      "name": {json.dumps(vector["name"])},\n'
            f'      "groups": [\n{groups}\n      ],\n'
            f'      "chunks": {lines(vector["chunks"], 6)},\n'
            f'      "tensors": {lines(vector["tensors"], 6)}\n'
            "    }"
        )
    return '{\n  "version": 1,\n  "vectors": [\n' + ",\n".join(entries) + "\n  ]\n}\n"


def differences(text):
    """What is wrong with the file: against the known answers, its own inputs, and this script."""
    file = json.loads(text)
    if file["version"] != 1:
        yield f"the file says version {file['version']!r}; this script knows 1"
        return
    by_name = {vector["name"]: vector for vector in file["vectors"]}
    if len(by_name) != len(file["vectors"]):
        yield "two vectors have the same name"
    for name, known in KNOWN.items():
        found = [(chunk["size"], int(chunk["hash"])) for chunk in by_name.get(name, {"chunks": []})["chunks"]]
        if found != known:
            yield f"{name}: the chunks are {found}, known are {known}"
    for name, vector in by_name.items():
        chunks, places = place(vector["groups"])
        if vector["chunks"] != chunks:
            yield f"{name}: the chunks are {vector['chunks']}, expected {chunks}"
        if vector["tensors"] != places:
            yield f"{name}: the tensors lie at {vector['tensors']}, expected {places}"
    if text != document():
        yield "the file is not what this script writes; run it without --check"


def main(arguments):
    path = pathlib.Path(__file__).with_suffix(".json")
    if arguments == []:
        text = document()
        path.write_text(text, encoding="utf-8")
    elif arguments == ["--check"]:
        text = path.read_text(encoding="utf-8")
    else:
        sys.exit("usage: layout-vectors.py [--check]")
    wrong = list(differences(text))
    for line in wrong:
        print(f"{path.name}: {line}", file=sys.stderr)
    if wrong:
        sys.exit(1)
    print(f"{path.name}: {len(json.loads(text)['vectors'])} vectors, all as computed")


main(sys.argv[1:])
