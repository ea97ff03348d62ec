"""What a run reports: results, the label of its chain, figures, and the table that is printed."""
