"""What every network is made of: linear maps, activations, normalisation (Inference Engineering, 2.1)."""
