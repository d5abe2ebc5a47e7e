"""Models as data, and one decoder that runs them."""
