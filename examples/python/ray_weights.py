"""Weights go from a trainer to generators, actors of Ray, by tcpx: nothing of them passes Ray's object store.

    pip install ray numpy
    python ray_weights.py [--generators 2] [--mebibytes 64] [--torch] [--address auto]

Without an address it starts Ray on this machine. With --torch the weights are tensors of torch, on the GPU where the
trainer has one.
"""

import argparse
import time

import numpy
import ray

import tcpx.integrations.ray

LAYERS = 16


class Trainer:
    def __init__(self, mebibytes, torch):
        self.shape = (mebibytes * (1 << 20) // 4 // LAYERS,)
        self.torch = torch
        self.step = 0

    def tensor(self, array):
        if not self.torch:
            return array
        import torch

        return torch.from_numpy(array).to("cuda" if torch.cuda.is_available() else "cpu")

    def weights(self):
        self.step += 1
        return {f"layer {i}": self.tensor(numpy.full(self.shape, self.step + i, "float32")) for i in range(LAYERS)}


class Generator:
    def take(self, weights, step):
        """Whether every number is right."""
        return all(bool((weight == step + i).all()) for i, weight in enumerate(weights.values()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--address")
    options = parser.parse_args()
    tcpx.integrations.ray.register(data_type=None if options.torch else numpy.ndarray)
    if not ray.is_initialized():
        ray.init(address=options.address, include_dashboard=False, log_to_driver=False)

    actor = ray.remote(enable_tensor_transport=True, num_cpus=0)
    trainer = actor(Trainer).remote(options.mebibytes, options.torch)
    generators = [actor(Generator).remote() for _ in range(options.generators)]
    for step in (1, 2, 3):
        begun = time.monotonic()
        weights = trainer.weights.options(tensor_transport="TCPX").remote()
        if not all(ray.get([generator.take.remote(weights, step) for generator in generators])):
            raise SystemExit("wrong numbers arrived")
        print(
            f"step {step}: {options.mebibytes} MiB to {options.generators} generators in "
            f"{time.monotonic() - begun:.2f} s, every number is right"
        )


if __name__ == "__main__":
    main()
