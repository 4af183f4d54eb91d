"""Two agents of NIXL over tcpx: one reads memory of the other, and checks it.

    python3 nixl_pair.py owner                    on one host
    python3 nixl_pair.py reader OWNER_HOST        on another one, or the same

`make nixl install-nixl PYTHON=python3` puts the backend beside those of this Python's NIXL before.
"""
import sys
import time

import numpy
from nixl._api import nixl_agent, nixl_agent_config

PORT = 5555  # where the agents exchange their metadata
SECONDS = 30


def until(answer):
    """What a call answers, as soon as that is something."""
    deadline = time.monotonic() + SECONDS
    while not (found := answer()):
        if time.monotonic() > deadline:
            sys.exit(f"nothing has come within {SECONDS} s")
        time.sleep(0.001)
    return found


def agent_of(name, port):
    agent = nixl_agent(name, nixl_agent_config(enable_listen_thread=True, listen_port=port, backends=[]))
    agent.create_backend("TCPX", {})
    return agent


def blocks_of(memory):
    """As NIXL wants them: address, length, device."""
    return [(memory.ctypes.data, memory.nbytes, 0, "")]


def known(agent, name, host):
    """Asks for its metadata, which it can give as soon as it runs."""
    agent.fetch_remote_metadata(name, host, PORT)
    time.sleep(0.2)
    return agent.check_remote_metadata(name)


def owner():
    agent, memory = agent_of("owner", PORT), numpy.arange(1 << 20)
    agent.register_memory(blocks_of(memory), "DRAM")
    until(lambda: agent.check_remote_metadata("reader"))
    where = agent.get_xfer_descs([blocks_of(memory)[0][:3]], "DRAM")
    agent.send_notif("reader", agent.get_serialized_descs(where))
    print("the reader says", until(agent.get_new_notifs)["reader"])


def reader(host):
    agent, memory = agent_of("reader", PORT + 1), numpy.zeros(1 << 20, dtype=int)
    agent.register_memory(blocks_of(memory), "DRAM")
    until(lambda: known(agent, "owner", host))
    agent.send_local_metadata(host, PORT)
    there = agent.deserialize_descs(until(agent.get_new_notifs)["owner"][0])
    here = agent.get_xfer_descs([blocks_of(memory)[0][:3]], "DRAM")
    transfer = agent.initialize_xfer("READ", here, there, "owner", b"thank you")
    agent.transfer(transfer)
    until(lambda: agent.check_xfer_state(transfer) != "PROC")
    right = (memory == numpy.arange(1 << 20)).all()
    print(agent.check_xfer_state(transfer), memory.nbytes, "bytes,", "verified" if right else "WRONG")


if sys.argv[1:] == ["owner"]:
    owner()
elif sys.argv[1:2] == ["reader"] and len(sys.argv) == 3:
    reader(sys.argv[2])
else:
    sys.exit(__doc__)
