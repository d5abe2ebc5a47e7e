"""What the operations of images and video do and move: rows of the table of ``bottleneck.cost``."""

__all__ = ["ROWS"]

ROWS: tuple[tuple[str, str, str], ...] = (
    ("linear_combination", "2 count image", "b image (count + 1)"),
    ("guided_combination", "image (2 count + 5)", "b image (count + 3)"),
    ("guide", "3 image", "3 b image"),
    ("rescale_guidance", "8 image", "3 b image"),
    ("scale_by_exp", "2 image", "3 b image"),
    ("clip_x0", "2 image", "2 b image"),
    ("threshold_x0", "image log2(image)", "2 b image"),
    ("timestep_embedding", "2 T dim", "b (T + T dim)"),
    ("adaln", "10 T D", "b (2 T D + 2 tokens D)"),
    ("gated_residual", "2 T D", "b (3 T D + tokens D)"),
    (
        "conv3d", "2 O out_frames out_y out_x taps ky kx C",
        "b (C frames Y X + O C taps ky kx + O out_frames out_y out_x)",
    ),
    ("patchify", "0", "2 b C rest"),
    ("unpatchify", "0", "2 b T D"),
)
"""By name: operations and bytes, as formulas over sizes."""
