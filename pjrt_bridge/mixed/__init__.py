"""Mixed execution, for any framework: graphs split between a device and the host."""
