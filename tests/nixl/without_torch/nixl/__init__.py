"""Stands in for the package nixl, which chooses the wheel of a CUDA: here there is one."""
