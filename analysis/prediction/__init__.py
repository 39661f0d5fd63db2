"""What the best linear predictor of the next symbol weighs the past with: from correlations, exact or measured."""
