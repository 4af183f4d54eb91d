#!/usr/bin/env python3
"""PyTorch's NCCL backend over tcpx: two ranks, every element checked.

On two machines, with the same address and port on both:

    NCCL_NET_PLUGIN=/usr/local/lib/libnccl-net-tcpx.so NCCL_NET=TCPX \\
        torchrun --nnodes 2 --nproc-per-node 1 --node-rank RANK \\
        --master-addr HOST --master-port 29500 examples/torch_pair.py

On one machine with one GPU, for a try: without torchrun. The two ranks then play two hosts.
"""
import os
import subprocess
import sys
import time


def rank_main():
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl")
    failed = False

    for size in (1 << 10, 1 << 20, 64 << 20):
        count = size // 4
        mine = torch.full((count,), float(rank + 1), device="cuda")
        ramp = torch.arange(count, device="cuda", dtype=torch.float32) % 1021
        for name in ("all_reduce", "broadcast", "send/recv", "all_gather", "all_to_all"):
            times = []
            good = True
            for turn in range(8):
                data = mine + ramp + turn
                other = (2.0 - rank) + ramp + turn
                if name == "send/recv" and rank == 1:
                    data.fill_(-1)
                gathered = torch.full((2 * count,), -1.0, device="cuda")
                torch.cuda.synchronize()
                dist.barrier()
                start = time.perf_counter()
                if name == "all_reduce":
                    dist.all_reduce(data)
                    expected = mine + ramp + turn + other
                elif name == "broadcast":
                    dist.broadcast(data, 0)
                    expected = 1.0 + ramp + turn
                elif name == "send/recv":
                    dist.send(data, 1) if rank == 0 else dist.recv(data, 0)
                    expected = 1.0 + ramp + turn
                elif name == "all_gather":
                    dist.all_gather_into_tensor(gathered, data)
                    data = gathered
                    expected = torch.cat([1.0 + ramp + turn, 2.0 + ramp + turn])
                else:
                    dist.all_to_all_single(gathered[:count], data)
                    half = count // 2
                    part = ramp[rank * half : rank * half + half] + turn
                    data = gathered[:count]
                    expected = torch.cat([1.0 + part, 2.0 + part])
                torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
                good = good and bool((data == expected).all())
            median = sorted(times[2:])[3]
            failed = failed or not good
            if rank == 0:
                print(f"{name:11} {size:9} bytes  {median * 1e6:9.0f} us  "
                      f"{size / median / 1e9:6.2f} GB/s  {'verified' if good else 'WRONG'}",
                      flush=True)
    dist.destroy_process_group()
    return 1 if failed else 0


def two_ranks_here():
    """The same program twice; NCCL takes ranks with different host names for two machines."""
    common = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                  WORLD_SIZE="2", NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    ranks = [subprocess.Popen([sys.executable, __file__],
                              env=dict(common, RANK=str(rank), NCCL_HOSTID=f"host{rank}"))
             for rank in range(2)]
    return max(abs(rank.wait(timeout=600)) for rank in ranks)


if __name__ == "__main__":
    sys.exit(rank_main() if "RANK" in os.environ else two_ranks_here())
