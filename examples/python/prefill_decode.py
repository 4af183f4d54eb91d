"""Disaggregated serving: decode reads blocks of prefill's KV cache, without a call there.

    python prefill_decode.py prefill TICKET [PORT]
    python prefill_decode.py decode TICKET HOST [PORT]

Prefill writes its window's key to the file TICKET; in a server it goes with the request. The note of
a read tells prefill that the blocks are free again. Where there is no GPU, tcpx takes an emulated one.
"""

import asyncio
import json
import os
import sys

import tcpx

BLOCK = 64 << 10
BLOCKS = 64
REQUESTS = {"request 1": [7, 3, 12], "request 2": list(range(20, 60)), "request 3": [0]}


def bytes_of(block):
    return bytes([block * 7 % 256]) * BLOCK


async def prefill(ticket, port=12345):
    cache = tcpx.GpuMemory(BLOCKS * BLOCK)  # or a tensor of torch
    for block in range(BLOCKS):
        cache.write(bytes_of(block), block * BLOCK)
    window = tcpx.Window(cache, read=True, block=BLOCK)
    listener = tcpx.listen(port=int(port), gpu=0, name="prefill", windows=True)
    with open(os.open(ticket, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump({"key": window.key.hex(), "requests": REQUESTS}, file)
    print("listening on port", listener.port, flush=True)

    in_use = set(REQUESTS)
    async for session in listener:
        while in_use:  # the peer reads by itself: this program could compute here
            for note in await session.wait_notes():
                in_use.remove(note.decode())
                print(f"{note.decode()}: {session.peer} has its blocks", flush=True)
        break


async def read(session, window, remote, request, blocks, places):
    """Into these places of our own cache; at most for 10 seconds."""
    await session.read(
        window.blocks(places), remote.blocks(blocks), note=request.encode(), timeout=10
    )
    print(f"{request}: read {len(blocks)} blocks", flush=True)


async def decode(ticket, host, port=12345):
    cache = tcpx.GpuMemory(BLOCKS * BLOCK)
    window = tcpx.Window(cache, block=BLOCK)  # for this side only
    with open(ticket) as file:
        answer = json.load(file)
    session = await asyncio.to_thread(tcpx.connect, host, int(port), gpu=0, name="decode")
    print(session.path, flush=True)
    async with session:
        remote = session.remote(bytes.fromhex(answer["key"]), block=BLOCK)
        free = iter(range(BLOCKS))
        places = {r: [next(free) for _ in blocks] for r, blocks in answer["requests"].items()}
        await asyncio.gather(
            *(
                read(session, window, remote, request, blocks, places[request])
                for request, blocks in answer["requests"].items()
            )
        )
    for request, blocks in answer["requests"].items():
        for place, block in zip(places[request], blocks, strict=True):
            assert cache.read(place * BLOCK, BLOCK) == bytes_of(block)
    print("every byte is right")


if __name__ == "__main__":
    sides = {"prefill": prefill, "decode": decode}
    if len(sys.argv) < 3 or sys.argv[1] not in sides:
        sys.exit(__doc__)
    asyncio.run(sides[sys.argv[1]](*sys.argv[2:]))
