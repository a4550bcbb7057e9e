"""Devices: names, leases, clock, memory and arithmetic.

Only this package distinguishes kinds of devices. All other code uses `torch.get_device_module`, so that CUDA, ROCm
(called cuda in torch), XPU and others share one code path. Missing features follow from the module: MPS, for example,
has no streams, so nothing is copied while it computes, and its peak memory is not measured.
"""
