"""One StableHLO program of one ATen graph, node by node."""
