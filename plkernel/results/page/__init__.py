"""The page of a report: a view of the comparison as plain values, and one template that shows it."""
