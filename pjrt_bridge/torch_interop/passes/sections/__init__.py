"""Values made of sections, which were written one after the other or summed with zeros around."""
