"""Who owns plugin objects, and until when: handles, pins, loans, pending work, exit."""
