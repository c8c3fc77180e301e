"""Values that are made of parts: written one after the other, or summed with zeros around them."""
