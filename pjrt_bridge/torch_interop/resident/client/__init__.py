"""The client that the device stands for: its devices, their memory, their errors."""
