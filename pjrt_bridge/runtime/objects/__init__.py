"""The objects of PJRT: plugin, client, device, buffer, executable, event, topology."""
