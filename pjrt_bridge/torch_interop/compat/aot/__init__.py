"""AOTAutograd, torch.export and other functions of torch that trace graphs of ATen."""
