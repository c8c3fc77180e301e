"""What tests take, by folder and by file."""
