"""What anybody's checkpoint can remember: its decays, found by name and read alone, and what is wrong with them."""
