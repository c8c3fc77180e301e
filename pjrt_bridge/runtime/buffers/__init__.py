"""Buffers: arrays in a memory space of a device, and how they are made of others."""
