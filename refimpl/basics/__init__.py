"""2.1: what every network is made of."""
