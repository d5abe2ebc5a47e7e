"""Where libraries are known to choose otherwise than the cases: the row of the conventions, and where it shows."""

from typing import Any

import numpy as np

from golden.verify import Deviation

__all__ = ["HIDDEN_TIMES_ZERO", "MEAN_ONCE", "TAIL_CUT", "TOP_LEFT"]


def _lengths_differ(q: Any = None, k: Any = None, causal: bool = True, **_: Any) -> bool:
    return q is not None and causal and len(q) != len(k)


def _hides_nan(v: Any = None, mask: Any = None, causal: bool = True, **_: Any) -> bool:
    return v is not None and (causal or mask is not None) and bool(np.isnan(v).any())


def _has_large_offset(x: Any = None, gain: Any = None, bias: Any = None, **_: Any) -> bool:
    return gain is not None and bias is not None and abs(float(x.mean())) > 1000 * float(x.std())


def _is_far_below(x: Any = None, **others: Any) -> bool:
    return x is not None and not others and float(np.nanmin(x)) < -15


TOP_LEFT = Deviation(4, "query t sees the keys s <= t", _lengths_differ, "attention.mask_from_first_key")
HIDDEN_TIMES_ZERO = Deviation(27, "what is hidden is multiplied by 0", _hides_nan, "attention.hidden_by_zero")
MEAN_ONCE = Deviation(31, "the mean is taken away once", _has_large_offset)
TAIL_CUT = Deviation(34, "a sigmoid is 0 from -18 on", _is_far_below)
