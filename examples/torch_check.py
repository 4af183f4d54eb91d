#!/usr/bin/env python3
"""PyTorch's NCCL backend over tcpx: any number of ranks, every element checked.

On two machines, with the same address and port on both:

    NCCL_NET_PLUGIN=/usr/local/lib/libnccl-net-tcpx.so NCCL_NET=TCPX \\
        torchrun --nnodes 2 --nproc-per-node 1 --node-rank RANK \\
        --master-addr HOST --master-port 29500 examples/torch_check.py

On one machine with one GPU, for a try: without torchrun, with the number of ranks (2). Each of them
plays a host.
"""
import os
import subprocess
import sys
import time

TURNS = 8


def values(rank, count, turn, device):
    """What a rank has in a turn; sums of these are exact in float32."""
    import torch

    return torch.arange(count, device=device, dtype=torch.float32) % 1021 + (rank + 1 + turn)


def move(name, rank, ranks, count, turn):
    """One operation: how long it took, and whether every element is right."""
    import torch
    import torch.distributed as dist

    device = "cuda"
    mine = values(rank, count, turn, device)
    result = torch.full((count * (ranks if name == "all_gather" else 1),), -1.0, device=device)
    torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    if name == "all_reduce":
        dist.all_reduce(mine)
        result = mine
    elif name == "broadcast":
        result = mine
        dist.broadcast(result, 0)
    elif name == "all_gather":
        dist.all_gather_into_tensor(result, mine)
    elif name == "all_to_all":
        dist.all_to_all_single(result, mine)
    else:  # to the next one, in a ring
        for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, mine, (rank + 1) % ranks),
                dist.P2POp(dist.irecv, result, (rank - 1) % ranks)]):
            work.wait()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    of = [values(other, count, turn, device) for other in range(ranks)]
    part = count // ranks
    expected = {
        "all_reduce": lambda: sum(of),
        "broadcast": lambda: of[0],
        "all_gather": lambda: torch.cat(of),
        "all_to_all": lambda: torch.cat([one[rank * part:(rank + 1) * part] for one in of]),
        "ring": lambda: of[(rank - 1) % ranks],
    }[name]()
    return seconds, bool((result == expected).all())


def rank_main():
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    all_good = torch.ones(1, device=device)
    for size in (1 << 10, 1 << 20, 64 << 20):
        count = size // 4 // ranks * ranks
        for name in ("ring", "broadcast", "all_reduce", "all_gather", "all_to_all"):
            turns = [move(name, rank, ranks, count, turn) for turn in range(TURNS)]
            seconds = sorted(seconds for seconds, _ in turns[2:])[(TURNS - 2) // 2]
            good = torch.tensor([float(all(good for _, good in turns))], device=device)
            dist.all_reduce(good, dist.ReduceOp.MIN)
            all_good = torch.minimum(all_good, good)
            if rank == 0:
                print(f"{name:10} {count * 4:9} bytes {seconds * 1e6:9.0f} us "
                      f"{count * 4 / seconds / 1e9:7.2f} GB/s  "
                      f"{'verified' if good.item() == 1 else 'WRONG'}", flush=True)
    dist.destroy_process_group()
    return 0 if all_good.item() == 1 else 1


def ranks_here(ranks):
    """The same program several times; NCCL takes ranks with different host names for machines."""
    common = dict(os.environ, MASTER_ADDR="127.0.0.1", WORLD_SIZE=str(ranks),
                  MASTER_PORT=str(20000 + os.getpid() % 20000), NCCL_SOCKET_IFNAME="lo")
    children = [subprocess.Popen([sys.executable, __file__],
                                 env=dict(common, RANK=str(rank), NCCL_HOSTID=f"host{rank}"))
                for rank in range(ranks)]
    return max(abs(child.wait(timeout=600)) for child in children)


if __name__ == "__main__":
    if "RANK" in os.environ:
        sys.exit(rank_main())
    sys.exit(ranks_here(int(sys.argv[1]) if len(sys.argv) > 1 else 2))
