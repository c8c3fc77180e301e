"""A user's function eagerly, compiled by Inductor, and compiled by the bridge, side by side."""
