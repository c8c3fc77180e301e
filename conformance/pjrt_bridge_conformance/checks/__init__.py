"""The checks, one module for each part of the interface; `suite` reads their groups."""
