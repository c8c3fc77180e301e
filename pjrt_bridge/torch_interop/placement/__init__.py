"""What runs on the device and what stays with PyTorch, and the parts that follow from that."""
