"""Known models: their exact solution for all goals, and the audit that holds a result against them."""
