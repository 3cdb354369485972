"""Settings of explorations, training runs and certifications, each declared once."""
