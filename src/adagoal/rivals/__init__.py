"""What the paper compares itself with, on shared counts and worlds; and VALAE and LAE, which came after it."""
