"""Tensors of torch's own accelerators, such as CUDA's, in memory that a plugin's programs use.

`torch.compile(model.cuda(), backend="pjrt")`: arguments go in as buffers over the tensors' memory,
and results come out as tensors over the plugin's, in the order of both streams and without a wait
on the host (`pjrt_bridge.runtime.transfers.device_dlpack`).
"""
