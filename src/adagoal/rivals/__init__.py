"""What the paper compares itself with: UcbExplore, DisCo, GOSPRL and BPI-UCBVI, on shared counts and worlds."""
