"""The paper's figures and our own: each a small script behind ``adagoal reproduce NAME``."""
