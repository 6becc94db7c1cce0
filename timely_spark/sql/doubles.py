"""Functions of doubles by the formulas of fdlibm, which Java's `StrictMath` and so Spark compute.

Their last bits matter where `floor` or a comparison reads them: `log(3, 243)` is 5. They also are the same on
every processor: a row that was inserted on one machine and is removed on another has to be the same row.
NumPy's own functions differ between processors with and without AVX-512. Each step here is a sum, product,
quotient or root, which all processors round alike. `sin`, `cos` and `tan` are of NumPy's long doubles, and
equal on processors of one architecture.

The formulas and constants are those of fdlibm, Copyright (C) 1993 by Sun Microsystems, Inc.: developed at
SunSoft, a Sun Microsystems, Inc. business. Permission to use, copy, modify, and distribute this software is
freely granted, provided that this notice is preserved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LN2_INVERSE = 1.44269504088896338700
_PI_LOW = 1.2246467991473531772e-16
_HALF_PI, _HALF_PI_LOW = np.pi / 2, 6.12323399573676603587e-17


def _high(x: Any) -> Any:
    """The first 32 bits of doubles, without the sign: in the order of the magnitudes."""
    return (x.view(np.int64) >> 32) & 0x7FFFFFFF


def _double(bits: Any) -> Any:
    """Doubles of these first 32 bits."""
    return (bits.astype(np.int64) << 32).view(np.float64)


def _rough(x: Any) -> Any:
    """Doubles without their last 32 bits."""
    return (x.view(np.int64) & -(1 << 32)).view(np.float64)


def _series(x: Any, *coefficients: float) -> Any:
    """A polynomial, from the constant on."""
    total = coefficients[-1]
    for one in coefficients[-2::-1]:
        total = one + x * total
    return total


# -- logarithms ----------------------------------------------------------------------------------------------


def _split(x: Any, most: int) -> tuple[Any, Any]:
    """Positive doubles as `m` and `k` of `m * 2 ** k`; the mantissa of an `m` from 1 on is below `most`."""
    m, k = np.frexp(x)
    above = (_high(m) & 0xFFFFF) >= most
    return np.where(above, m, m * 2), (k - 1 + above).astype(np.float64)


_LG = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
    1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01,
)  # fmt: skip


def log(x: Any) -> Any:
    """The natural logarithm."""
    m, k = _split(x, 0x6A09C)
    f, low = m - 1, k * _LN2_LOW
    s = f / (2 + f)
    z = s * s
    w = z * z
    rest = w * _series(w, *_LG[1::2]) + z * _series(w, *_LG[::2])
    mantissa = _high(m) & 0xFFFFF
    half = 0.5 * f * f
    tiny = f * f * (0.5 - 0.33333333333333333 * f) - low
    middle = (mantissa >= 0x6147A) & (mantissa <= 0x6B851)
    less = np.select(
        [((mantissa + 2) & 0xFFFFF) < 3, middle],
        [tiny, half - (s * (half + rest) + low)],
        s * (f - rest) - low,
    )
    result = k * _LN2_HIGH - (less - f)
    return np.select([x == 0, x < 0, x < np.inf], [-np.inf, np.nan, result], x)


def log10(x: Any) -> Any:
    """The logarithm to the base 10."""
    m, k = np.frexp(x)
    m, k = np.where(k > 0, m * 2, m), np.where(k > 0, k - 1, k).astype(np.float64)
    result = k * 3.69423907715893078616e-13 + 4.34294481903251816668e-01 * log(m)
    result = result + k * 3.01029995663611771306e-01
    return np.select([x == 0, x < 0, x < np.inf], [-np.inf, np.nan, result], x)


def log1p(x: Any) -> Any:
    """The natural logarithm of `1 + x`."""
    near = np.where(x < 0, _high(x) <= 0x3FD2BEC3, _high(x) < 0x3FDA827A)
    u = np.where(x < 2.0**53, 1 + x, x)
    m, k = _split(u, 0x6A09E)
    lost = np.where(x < 2.0**53, np.where(u >= 2, 1 - (u - x), x - (u - 1)) / u, 0)
    f, k, lost = (np.where(near, one, other) for one, other in ((x, m - 1), (0, k), (0, lost)))
    half = 0.5 * f * f
    s = f / (2 + f)
    z = s * s
    rest = z * _series(z, *_LG)
    low = k * _LN2_LOW + lost
    tiny = ~near & (((_high(m) + 3) & 0xFFFFF) < 4)
    less = np.where(tiny, half * (1 - 0.66666666666666666 * f) - low, half - (s * (half + rest) + low))
    result = k * _LN2_HIGH - (less - f)
    return np.select(
        [x == -1, x < -1, np.abs(x) < 2.0**-54, np.abs(x) < 2.0**-29, x < np.inf],
        [-np.inf, np.nan, x, x - x * x * 0.5, result],
        x,
    )


def asinh(x: Any) -> Any:
    """The inverse of `sinh`."""
    a, square = np.abs(x), x * x
    small = log1p(a + square / (1 + np.sqrt(1 + square)))
    middle = log(2 * a + 1 / (np.sqrt(square + 1) + a))
    large = log(a) + log(np.array(2.0))
    return np.copysign(np.select([a < 2.0**-28, a > 2.0**28, a > 2], [a, large, middle], small), x)


def acosh(x: Any) -> Any:
    """The inverse of `cosh`."""
    above = x - 1
    small = log1p(above + np.sqrt(2 * above + above * above))
    middle = log(2 * x - 1 / (x + np.sqrt(x * x - 1)))
    large = log(x) + log(np.array(2.0))
    return np.select([x < 1, x >= 2.0**28, x > 2], [np.nan, large, middle], small)


# -- exponentials --------------------------------------------------------------------------------------------

_P = (
    1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05,
    -1.65339022054652515390e-06, 4.13813679705723846039e-08,
)  # fmt: skip
_Q = (
    1.0, -3.33333333333331316428e-02, 1.58730158725481460165e-03, -7.93650757867487942473e-05,
    4.00821782732936239552e-06, -2.01099218183624371326e-07,
)  # fmt: skip


def _reduced(x: Any) -> tuple[Any, Any, Any]:
    """`high`, `low` and `k`, with `x` as `high - low + k * ln(2)`."""
    size, sign = _high(x), np.copysign(1, x)
    finite = np.clip(np.where(np.isnan(x), 0, x), -800, 800)
    k = np.where(size < 0x3FF0A2B2, sign, np.trunc(_LN2_INVERSE * finite + 0.5 * sign))
    k = np.where(size > 0x3FD62E42, k, 0)
    return x - k * _LN2_HIGH, k * _LN2_LOW, k


def exp(x: Any) -> Any:
    """The exponential function."""
    high, low, k = _reduced(x)
    r = high - low
    t = r * r
    c = r - t * _series(t, *_P)
    y = np.ldexp(1 - ((low - (r * c) / (2 - c)) - high), k.astype(np.int32))
    return np.select(
        [np.isnan(x), x > 7.09782712893383973096e02, x < -7.45133219101941108420e02, _high(x) < 0x3E300000],
        [x, np.inf, 0, 1 + x],
        y,
    )


def expm1(x: Any) -> Any:
    """The exponential function, less 1."""
    high, low, k = _reduced(x)
    r = high - low
    c = (high - r) - low
    half = 0.5 * r
    square = r * half
    r1 = _series(square, *_Q)
    t = 3.0 - r1 * half
    e = square * ((r1 - t) / (6.0 - r * t))
    none = r - (r * e - square)
    e = (r * (e - c) - c) - square
    n = k.astype(np.int32)
    less = np.ldexp(1.0, -np.maximum(n, 0))
    one = np.where(r < -0.25, -2.0 * (e - (r + 0.5)), 1.0 + 2.0 * (r - e))
    y = np.select(
        [k == 0, k == -1, k == 1, (k <= -2) | (k > 56), k < 20],
        [
            none,
            0.5 * (r - e) - 0.5,
            one,
            np.ldexp(1.0 - (e - r), n) - 1.0,
            np.ldexp((1.0 - less) - (e - r), n),
        ],
        np.ldexp((r - (e + less)) + 1.0, n),
    )
    return np.select(
        [
            np.isnan(x) | (np.abs(x) < 2.0**-54),
            x > 7.09782712893383973096e02,
            (_high(x) >= 0x4043687A) & (x < 0),
        ],
        [x, np.inf, -1.0],
        y,
    )


def sinh(x: Any) -> Any:
    """The hyperbolic sine."""
    a, half = np.abs(x), np.copysign(0.5, x)
    t, w = expm1(a), exp(0.5 * a)
    small = half * np.where(a < 1, 2.0 * t - t * t / (t + 1), t + t / (t + 1))
    return np.select(
        [np.isnan(x) | (a < 2.0**-28), a < 22, _high(x) < 0x40862E42],
        [x, small, half * exp(a)],
        half * w * w,
    )


def cosh(x: Any) -> Any:
    """The hyperbolic cosine."""
    a = np.abs(x)
    t, e, w = expm1(a), exp(a), exp(0.5 * a)
    return np.select(
        [np.isnan(x), _high(x) < 0x3C800000, _high(x) < 0x3FD62E43, a < 22, _high(x) < 0x40862E42],
        [x, 1 + t, 1 + (t * t) / ((1 + t) + (1 + t)), 0.5 * e + 0.5 / e, 0.5 * e],
        0.5 * w * w,
    )


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    a = np.abs(x)
    t, s = expm1(2 * a), expm1(-2 * a)
    y = np.select([a >= 22, a >= 1], [1.0, 1 - 2 / (t + 2)], -s / (s + 2))
    return np.where(np.isnan(x) | (_high(x) < 0x3C800000), x * (1 + x), np.copysign(y, x))


# -- powers and roots ----------------------------------------------------------------------------------------

_L = (
    5.99999999999994648725e-01, 4.28571428578550184252e-01, 3.33333329818377432918e-01,
    2.72728123808534006489e-01, 2.30660745775561754067e-01, 2.06975017800338417784e-01,
)  # fmt: skip


def _log2_parts(x: Any) -> tuple[Any, Any]:
    """The logarithm to the base 2 of positive doubles, as a sum of which the first part is rough."""
    m, k = _split(x, 0xBB67A)
    upper = (m > 1) & ((_high(m) & 0xFFFFF) > 0x3988E)
    near = np.where(upper, 1.5, 1.0)
    u, v = m - near, 1.0 / (m + near)
    ss = u * v
    s_high = _rough(ss)
    t_high = _double(((_high(m) >> 1) | 0x20000000) + 0x00080000 + (upper << 18))
    t_low = m - (t_high - near)
    s_low = v * ((u - s_high * t_high) - s_high * t_low)
    s2 = ss * ss
    r = s2 * s2 * _series(s2, *_L) + s_low * (s_high + ss)
    s2 = s_high * s_high
    t_high = _rough(3.0 + s2 + r)
    t_low = r - ((t_high - 3.0) - s2)
    u, v = s_high * t_high, s_low * t_high + t_low * ss
    p_high = _rough(u + v)
    p_low = v - (p_high - u)
    z_high = 9.61796700954437255859e-01 * p_high
    z_low = -7.02846165095275826516e-09 * p_high + p_low * 9.61796693925975554329e-01
    z_low = z_low + np.where(upper, 1.35003920212974897128e-08, 0.0)
    d_high = np.where(upper, 5.84962487220764160156e-01, 0.0)
    t1 = _rough(((z_high + z_low) + d_high) + k)
    return t1, z_low - (((t1 - k) - d_high) - z_high)


def _log2_near_1(x: Any) -> tuple[Any, Any]:
    t = x - 1.0
    w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25))
    u = 1.44269502162933349609 * t
    v = t * 1.92596299112661746887e-08 - w * 1.44269504088896338700
    t1 = _rough(u + v)
    return t1, v - (t1 - u)


def power(x: Any, y: Any) -> Any:
    """`x` to the power of `y`. In Java, unlike in C, 1 to the power of NaN or of infinity is NaN."""
    a, size = np.abs(x), np.abs(y)
    positive = np.where((a > 0) & (a < np.inf), a, 1.0)
    finite = np.where(np.isfinite(y), y, 0.0)
    huge = size > float.fromhex("0x1.00000ffffffffp31")
    near = np.clip(positive, float.fromhex("0x1.fffff00000000p-1"), float.fromhex("0x1.00000ffffffffp0"))
    t1, t2 = (
        np.where(huge, one, other)
        for one, other in zip(_log2_near_1(near), _log2_parts(positive), strict=True)
    )
    y1 = _rough(finite)
    p_low, p_high = (finite - y1) * t1 + finite * t2, y1 * t1
    z = p_low + p_high
    over = (z > 1024) | ((z == 1024) & (p_low + 8.0085662595372944372e-17 > z - p_high))
    under = (z < -1075) | ((z == -1075) & (p_low <= z - p_high))
    n = np.where(_high(z) > 0x3FE00000, np.copysign(np.floor(np.abs(z) + 0.5), z), 0)
    n = np.clip(n, -1100, 1100)
    p_high = p_high - n
    t = _rough(p_low + p_high)
    u = t * 6.93147182464599609375e-01
    v = (p_low - (t - p_high)) * 6.93147180559945286227e-01 + t * -1.90465429995776804525e-09
    s = u + v
    w = v - (s - u)
    t = s * s
    t1 = s - t * _series(t, *_P)
    r = (s * t1) / (t1 - 2.0) - (w + s * w)
    result = np.ldexp(1.0 - (r - s), n.astype(np.int32))
    result = np.select([over, under], [np.inf, 0.0], result)
    special = (a == 0) | (a == np.inf) | (a == 1)
    result = np.where(special, np.where(y < 0, 1 / a, a), result)
    whole = finite == np.trunc(finite)
    odd = whole & (np.abs(np.fmod(finite, 2)) == 1)
    negative = np.signbit(x)
    result = np.where(negative & odd, -result, result)
    result = np.where(negative & ~whole & (a > 0) & (a < np.inf), np.nan, result)
    infinite = np.where(a == 1, np.nan, np.where((a > 1) == (y > 0), np.inf, 0.0))
    return np.select(
        [
            y == 0, np.isnan(x) | np.isnan(y), y == 2, (y == 0.5) & (x > -np.inf), y == 1, y == -1,
            size == np.inf,
        ],
        [1.0, np.nan, x * x, np.sqrt(x + 0.0), x, 1 / x, infinite],
        result,
    )  # fmt: skip


def cbrt(x: Any) -> Any:
    """The cube root."""
    a = np.abs(x)
    small = a < 2.0**-1022
    scaled = np.where(small, a * 2.0**54, a)
    t = _double(_high(scaled) // 3 + np.where(small, 696219795, 715094163))
    r = t * t / a
    s = 5.42857142857142815906e-01 + r * t
    t = t * (
        3.57142857142857150787e-01
        + 1.60714285714285720630e00 / (s + 1.41428571428571436819e00 + -7.05306122448979611050e-01 / s)
    )
    t = _double(_high(t) + 1)
    s = t * t
    r = a / s
    w = t + t
    r = (r - t) / (w + r)
    t = t + t * r
    return np.where((a > 0) & (a < np.inf), np.copysign(t, x), x)


def hypot(x: Any, y: Any) -> Any:
    """The root of the sum of squares."""
    x, y = np.abs(x), np.abs(y)
    infinite = np.isinf(x) | np.isinf(y)
    a, b = np.maximum(x, y), np.minimum(x, y)
    far = _high(a) - _high(b) > 0x3C00000
    scale = np.where(a > float.fromhex("0x1.00000ffffffffp500"), 2.0**-600, 1.0)
    scale = np.where((scale == 1) & (b < 2.0**-500), np.where(b < 2.0**-1022, 2.0**1022, 2.0**600), scale)
    p, q = a * scale, b * scale
    w = p - q
    t1 = _rough(p)
    t2 = p - t1
    one = np.sqrt(t1 * t1 - (q * (-q) - t2 * (p + t1)))
    p2, y1 = p + p, _rough(q)
    y2, t1 = q - y1, _rough(p2)
    t2 = p2 - t1
    other = np.sqrt(t1 * y1 - (w * (-w) - (t1 * y2 + t2 * q)))
    result = np.where(w > q, one, other) / scale
    return np.select([infinite, np.isnan(x) | np.isnan(y), far | (b == 0)], [np.inf, np.nan, a + b], result)


# -- angles --------------------------------------------------------------------------------------------------


def _exactly(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that is computed with more digits and rounded once, as Java's instructions for it are."""
    return lambda x: function(x.astype(np.longdouble)).astype(np.float64)


sin, cos, tan = map(_exactly, (np.sin, np.cos, np.tan))

_AT = (
    3.33333333333329318027e-01, -1.99999999998764832476e-01, 1.42857142725034663711e-01,
    -1.11111104054623557880e-01, 9.09088713343650656196e-02, -7.69187620504482999495e-02,
    6.66107313738753120669e-02, -5.83357013379057348645e-02, 4.97687799461593236017e-02,
    -3.65315727442169155270e-02, 1.62858201153657823623e-02,
)  # fmt: skip
_PS = (
    1.66666666666666657415e-01, -3.25565818622400915405e-01, 2.01212532134862925881e-01,
    -4.00555345006794114027e-02, 7.91534994289814532176e-04, 3.47933107596021167570e-05,
)  # fmt: skip
_QS = (
    1.0, -2.40339491173441421878, 2.02094576023350569471, -6.88283971605453293030e-01,
    7.70381505559019352791e-02,
)  # fmt: skip


def atan(x: Any) -> Any:
    """The inverse of the tangent."""
    a, size = np.abs(x), _high(x)
    parts = [size < 0x3FDC0000, size < 0x3FE60000, size < 0x3FF30000, size < 0x40038000]
    r = np.select(parts, [a, (2 * a - 1) / (2 + a), (a - 1) / (a + 1), (a - 1.5) / (1 + 1.5 * a)], -1 / a)
    high = np.select(
        parts,
        [0, 4.63647609000806093515e-01, 7.85398163397448278999e-01, 9.82793723247329054082e-01],
        _HALF_PI,
    )
    low = np.select(
        parts,
        [0, 2.26987774529616870924e-17, 3.06161699786838301793e-17, 1.39033110312309984516e-17],
        _HALF_PI_LOW,
    )
    z = r * r
    w = z * z
    s = z * _series(w, *_AT[::2]) + w * _series(w, *_AT[1::2])
    y = np.where(parts[0], r - r * s, high - ((r * s - low) - r))
    y = np.select([np.isnan(x) | (size < 0x3E200000), size >= 0x44100000], [a, _HALF_PI + _HALF_PI_LOW], y)
    return np.copysign(y, x)


def atan2(y: Any, x: Any) -> Any:
    """The angle of a point."""
    far = (_high(y) - _high(x)) >> 20
    z = np.select([far > 60, (x < 0) & (far < -60)], [_HALF_PI + 0.5 * _PI_LOW, 0.0], atan(np.abs(y / x)))
    z = np.where(np.signbit(x), np.pi - (z - _PI_LOW), z)
    infinite = np.isinf(x) & np.isinf(y)
    z = np.where(infinite, np.where(x > 0, np.pi / 4, 3 * np.pi / 4), z)
    z = np.where(np.isinf(x) & ~infinite, np.where(x > 0, 0.0, np.pi), z)
    z = np.where(np.isinf(y) & ~infinite | (y != 0) & (x == 0), _HALF_PI, z)
    z = np.where((y == 0) & ~np.isnan(x), np.where(np.signbit(x), np.pi, 0.0), z)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.copysign(z, y))


def _ratio(t: Any) -> Any:
    return t * _series(t, *_PS) / _series(t, *_QS)


def asin(x: Any) -> Any:
    """The inverse of the sine."""
    a, size = np.abs(x), _high(x)
    t = (1 - a) * 0.5
    r, s = _ratio(t), np.sqrt(t)
    w = _rough(s)
    c = (t - w * w) / (s + w)
    p, q = 2 * s * r - (_HALF_PI_LOW - 2 * c), np.pi / 4 - 2 * w
    y = np.where(size >= 0x3FEF3333, _HALF_PI - (2 * (s + s * r) - _HALF_PI_LOW), np.pi / 4 - (p - q))
    y = np.select(
        [a > 1, a == 1, size < 0x3E400000, a < 0.5], [np.nan, _HALF_PI, a, a + a * _ratio(a * a)], y
    )
    return np.copysign(y, x)


def acos(x: Any) -> Any:
    """The inverse of the cosine."""
    a = np.abs(x)
    z = (1 - a) * 0.5
    r, s = _ratio(z), np.sqrt(z)
    below = np.pi - 2 * (s + (r * s - _HALF_PI_LOW))
    w = _rough(s)
    c = (z - w * w) / (s + w)
    above = 2 * (w + (r * s + c))
    middle = _HALF_PI - (x - (_HALF_PI_LOW - x * _ratio(x * x)))
    return np.select(
        [a > 1, x == 1, x == -1, a < 0.5, x < 0],
        [np.nan, 0.0, np.pi + 2 * _HALF_PI_LOW, middle, below],
        above,
    )
