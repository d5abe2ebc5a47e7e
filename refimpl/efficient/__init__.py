"""How attention is made cheap (Inference Engineering, 2.5): tile by tile, and over a cache in pages."""
