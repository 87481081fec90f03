"""What a recipe asks for: its values, its grids, and the networks to train."""
