"""What torch asks of an accelerator: its module, streams, autocast, modules that move to it."""
