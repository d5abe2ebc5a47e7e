"""Language models: from token ids to logits, from logits to a token, and from one token to a text, with weights in
floats or in blocks of small integers (Inference Engineering, 2.2).
"""
