"""A run's life: its setting, its folder, its checkpoints, its signals, its progress and its result."""
