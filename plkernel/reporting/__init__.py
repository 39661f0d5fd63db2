"""What a study shows: its numbers, what may be said of them, and the page, figures and rows of its report."""
