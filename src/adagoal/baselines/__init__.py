"""Published algorithms for comparison: UcbExplore, DisCo, VALAE, LAE, GOSPRL, BPI-UCBVI and interval MDPs."""
