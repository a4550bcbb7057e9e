"""Devices: which there are, who has one, its clock, its memory and its arithmetic.

Only this room knows kinds of devices. All other code asks `torch.get_device_module`, so that CUDA, ROCm (which torch
calls cuda), XPU and others take one road. The module of a kind says what it lacks: MPS, for example, has no streams,
so nothing is copied while it computes, and it does not measure peak memory.
"""
