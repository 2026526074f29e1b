"""What verification is made of: observing calls, comparing them, checking tables, and the evidence that results."""
