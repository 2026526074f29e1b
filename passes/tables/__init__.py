"""What a fold is made of: regions, their tables for every id, how those are stored, and their place in the graph."""
