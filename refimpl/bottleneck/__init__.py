"""What bounds an operation, a model, a machine: memory or arithmetic (Inference Engineering, 2.4)."""
