"""`python -m pjrt_bridge` is the command `pjrt-bridge`."""

from pjrt_bridge.cli.main import main

if __name__ == "__main__":
    main()
