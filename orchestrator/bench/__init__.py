"""Short runs of one job under several settings, and what they measured beside what was planned."""
