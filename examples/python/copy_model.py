"""A model's weights go from one process to another, with a progress bar.

    python copy_model.py give [PORT]
    python copy_model.py take HOST [PORT]

A state_dict here is a dict of arrays of numpy; one of torch works just as well, on a GPU with gpu=0.
"""

import json
import sys
import time

import numpy
import tcpx


def make_model():
    random = numpy.random.default_rng(7)
    shapes = {"embedding": (1000, 256), "head": (256, 1000)}
    for layer in range(8):
        shapes[f"layers.{layer}.attention"] = (256, 1024)
        shapes[f"layers.{layer}.bias"] = (1024,)
    return {name: random.standard_normal(shape, "float32") for name, shape in shapes.items()}


def give(port=12345):
    model = make_model()
    with tcpx.listen(port=int(port)) as listener:
        print("listening on port", listener.port, flush=True)
        session = listener.accept()
    plan = [(name, array.shape, str(array.dtype)) for name, array in model.items()]
    with session:
        session.note(json.dumps(plan).encode())
        transfers = [session.send(array, tag) for tag, array in enumerate(model.values())]
        for transfer in transfers:
            transfer.wait()
    print(f"gave {len(model)} arrays to {session.peer}")


def show(done, total, begun):
    rate = done / max(time.monotonic() - begun, 1e-9) / 1e9
    bar = "#" * (40 * done // total)
    print(f"\r[{bar:40}] {done / 1e6:.1f} of {total / 1e6:.1f} MB, {rate:.2f} GB/s", end="", flush=True)


def take(host, port=12345):
    session = tcpx.connect(host, int(port), name="taker")
    plan = json.loads(session.notes(timeout=60)[0])
    model = {name: numpy.empty(shape, dtype) for name, shape, dtype in plan}
    total = sum(array.nbytes for array in model.values())
    begun, done = time.monotonic(), 0
    with session:
        transfers = [session.receive(array, tag) for tag, array in enumerate(model.values())]
        for transfer in transfers:
            transfer.wait()
            done += transfer.nbytes
            show(done, total, begun)
    expected = make_model()
    assert all((model[name] == expected[name]).all() for name in expected)
    print(f"\ntook {len(model)} arrays, every number is right")


if __name__ == "__main__":
    sides = {"give": give, "take": take}
    if len(sys.argv) < 2 or sys.argv[1] not in sides:
        sys.exit(__doc__)
    sides[sys.argv[1]](*sys.argv[2:])
