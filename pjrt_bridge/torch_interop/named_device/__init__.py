"""What torch knows of the device when it is imported: its name, and what registers the rest."""
