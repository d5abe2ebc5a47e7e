"""The kernel of the causal convolution gives what the reference gives, and the same bits for every chunking."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from golden.tolerance import judge
from gpu import device
from gpu.media import operations as kernels
from gpu.media.conv3d import conv3d
from refimpl.media import conv3d as reference
from refimpl.media import operations
from refimpl.media.causal_vae import decode_video, encode_video
from tests.equivalence.strategies import dtypes, each_kernel, examples, numbers, seeds, specials
from tests.laws.test_conv3d import SPEC, network

sides = st.sampled_from((1, 2, 5, 17))


@each_kernel("conv3d")
@examples
@given(
    seeds, st.sampled_from((0, 1, 4)), sides, sides, st.tuples(*[st.integers(1, 3)] * 3),
    st.tuples(*[st.integers(1, 2)] * 3), dtypes, dtypes, st.booleans(), st.booleans(), specials,
)  # fmt: skip
def test_conv3d(kernel, seed, frames, Y, X, taps, stride, dtype, w_dtype, has_bias, has_state, special):
    stride = (min(stride[0], taps[0]), *stride[1:])
    x, w = numbers(seed, 2, frames, Y, X, dtype=dtype, special=special), numbers(seed + 1, 3, 2, *taps, dtype=w_dtype)
    b, state = numbers(seed + 2, 3, dtype=w_dtype), numbers(seed + 3, 2, taps[0] - 1, Y, X, dtype=dtype)
    given_ = x, w, b if has_bias else None, state if has_state else None
    named = {"stride": stride, "padding": ((1, taps[1] - 1), (taps[2] - 1, 1))}
    y, kept = kernel.call(*given_, **named)
    with np.errstate(all="ignore"):
        wide = [None if each is None else each.astype(np.float64) for each in given_]
        truth, left = reference.conv3d(*wide, **named)
    assert y.shape == truth.shape and np.array_equal(kept.astype(np.float64), left, equal_nan=True)
    verdict = judge(y.reshape(-1), truth.reshape(-1), dtype, terms=16 * 2 * int(np.prod(taps)))
    assert verdict.passed, verdict.reason


@examples
@given(seeds, st.integers(1, 6), st.integers(0, 6))
def test_chunks_change_no_bit(seed, frames, cut):
    x, w = numbers(seed, 2, frames, 3, 4), numbers(seed + 1, 2, 2, 3, 3, 3)
    whole, _ = conv3d(x, w, padding=((1, 1), (1, 1)))
    first, state = conv3d(x[:, :cut], w, padding=((1, 1), (1, 1)))
    second, _ = conv3d(x[:, cut:], w, None, state, padding=((1, 1), (1, 1)))
    assert np.array_equal(np.concatenate([first, second], 1), whole)


def test_the_causal_autoencoder_over_kernels_is_the_reference():
    weights = {name: weight.astype(np.float32) for name, weight in network(5).items()}
    video, latent = numbers(6, 1, 5, 8, 4), numbers(7, 2, 2, 2, 1)
    with device.use("emulated"):
        (mean, _), decoded = (f(x, weights, SPEC, kernels) for f, x in ((encode_video, video), (decode_video, latent)))
    np.testing.assert_allclose(mean, encode_video(video, weights, SPEC, operations)[0], atol=1e-4)
    np.testing.assert_allclose(decoded, decode_video(latent, weights, SPEC, operations), atol=1e-4)
