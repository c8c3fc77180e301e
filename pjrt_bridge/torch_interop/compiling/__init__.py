"""From a rewritten ATen graph to what runs it: place, divide, emit, compile, and record it."""
