"""The `pjrt-bridge` command."""
