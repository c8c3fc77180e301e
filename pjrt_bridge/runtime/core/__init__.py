"""What a plugin's objects have in common: devices, events, layouts, options, descriptions."""
