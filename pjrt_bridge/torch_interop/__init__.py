"""PyTorch on PJRT: the `pjrt` backend of torch.compile."""
