// The programs of docs/numerics.md in the common subset of OpenCL C 1.2 and CUDA C++. `source.py` adds the words of the
// language before it, and a LINEAR for each kind of weights behind it.
//
// No bit depends on the size of work-groups: a work-item computes an output by itself, or lanes share work whose order
// the page leaves open. Division and square root are made of fma and integers: a device's own are not trusted.

#define LANES(i, n) for (int i = LANE; i < (n); i += WIDTH)
#define ITEM (GROUP_X * WIDTH + LANE)
#define UNROLLED _Pragma("unroll")
#define LOWEST_KEY (-0x7f800000)  // of -infinity
#define UNITS 12582912.0f  // 1.5 * 2^23: a sum with it is rounded to a whole number

// ---- Rows of a pass: int32 arrays one after another, behind their starts (`rows.Part`) and the stride of tables ----

#define POSITIONS 0
#define LENGTHS 1
#define SLOTS 2
#define SEQUENCES 3
#define CONTIGUOUS 4
#define BRANCH_STARTS 5
#define TABLES 6
#define WANTED 8
#define BRANCHES 9
#define TABLE_STRIDE 10
#define OF(part, i) pass[pass[part] + (i)]
#define CACHE_BLOCK 64

/// The slot of the key at `position` that a row sees.
INLINE int slot_of(GLOBAL const int *pass, int row, int position)
{
    const int whole = OF(CONTIGUOUS, row);
    if (position >= whole) return OF(BRANCHES, OF(BRANCH_STARTS, row) + position - whole);
    const int line = OF(SEQUENCES, row) * pass[TABLE_STRIDE];
    return OF(TABLES, line + position / CACHE_BLOCK) * CACHE_BLOCK + position % CACHE_BLOCK;
}

// ---- Division and square root, correctly rounded, from + - * fma and integers ----

INLINE float divided(float a, float b)
{
    uint ua = as_uint(a), ub = as_uint(b);
    const uint sign = (ua ^ ub) & 0x80000000u;
    ua &= 0x7fffffffu;
    ub &= 0x7fffffffu;
    if (ua >= 0x7f800000u || ub >= 0x7f800000u || ua == 0 || ub == 0) {
        if (ua > 0x7f800000u || ub > 0x7f800000u || ua == ub) return as_float(0x7fc00000u);  // NaN, 0/0, inf/inf
        return as_float(sign | (ua == 0x7f800000u || ub == 0 ? 0x7f800000u : 0u));
    }
    int e = (int)(ua >> 23) - (int)(ub >> 23) + 127;
    uint ma = ua & 0x7fffffu, mb = ub & 0x7fffffu;
    if (ua < 0x800000u) { const int n = (int)clz(ma) - 8; ma <<= n; e += 1 - n; } else ma |= 0x800000u;
    if (ub < 0x800000u) { const int n = (int)clz(mb) - 8; mb <<= n; e -= 1 - n; } else mb |= 0x800000u;
    if (ma < mb) { ma <<= 1; e -= 1; }
    const float x = (float)ma, y = (float)mb;            // exact; x / y is in [1, 2)
    float r = as_float(0x7ef311c3u - as_uint(y));        // 1 / y within 13 %, by its exponent
    for (int i = 0; i < 4; i++) r = fma(r, fma(-y, r, 1.0f), r);
    float q = x * r;
    q = fma(fma(-q, y, x), r, q);                        // within one ulp
    q = q < 1.0f ? 1.0f : q > 0x1.fffffep+0f ? 0x1.fffffep+0f : q;
    const float ulp = 0x1p-23f, half_way = y * 0x1p-24f;
    float rest = fma(-q, y, x);                          // exact
    if (e > 0) {                                         // normal or infinite: rounded to nearest; there are no ties
        if (rest > half_way) q += ulp; else if (rest < -half_way) q -= ulp;
        return as_float(sign | (e > 254 ? 0x7f800000u : ((uint)e << 23) | (as_uint(q) & 0x7fffffu)));
    }
    if (rest < 0.0f) { q -= ulp; rest = fma(-q, y, x); } // subnormal: cut, then rounded in integers with the rest
    const int shift = 1 - e;
    if (shift > 25) return as_float(sign);
    const ulong wide = ((ulong)((as_uint(q) & 0x7fffffu) | 0x800000u) << 2) | (rest >= half_way ? 2u : 0u)
        | (rest != 0.0f && rest != half_way ? 1u : 0u);
    const ulong low = wide & (((ulong)4 << shift) - 1), tie = (ulong)2 << shift;
    ulong whole = wide >> (shift + 2);
    if (low > tie || (low == tie && (whole & 1))) whole++;
    return as_float(sign | (uint)whole);
}

INLINE float rooted(float a)
{
    const uint u = as_uint(a);
    if ((u << 1) == 0 || u == 0x7f800000u) return a;
    if (u > 0x7f800000u) return as_float(0x7fc00000u);
    int e = (int)(u >> 23) - 127;
    uint m = u & 0x7fffffu;
    if (u < 0x800000u) { const int n = (int)clz(m) - 8; m <<= n; e += 1 - n; }
    float x = as_float(0x3f800000u | (m & 0x7fffffu));   // [1, 2)
    if (e & 1) { x = x + x; e -= 1; }                    // [1, 4)
    float r = as_float(0x5f3759dfu - (as_uint(x) >> 1)); // 1 / sqrt(x) within 4 %
    for (int i = 0; i < 4; i++) r = fma(0.5f * r, fma(-x * r, r, 1.0f), r);
    float q = x * r;
    q = fma(fma(-q, q, x), 0.5f * r, q);                 // within one ulp
    q = q < 1.0f ? 1.0f : q > 0x1.fffffep+0f ? 0x1.fffffep+0f : q;
    const float rest = fma(-q, q, x), step = q * 0x1p-23f;  // exact, both
    if (rest > step) q += 0x1p-23f; else if (rest <= -step) q -= 0x1p-23f;
    return as_float(as_uint(q) + ((uint)(e / 2) << 23));
}

/// Each operation of the page on numbers of any bits, as a check of the device and its compiler.
KERNEL void operations(GLOBAL const float *a, GLOBAL const float *b, GLOBAL const float *c, GLOBAL const float *d,
    GLOBAL float *quotient, GLOBAL float *root, GLOBAL float *product, GLOBAL float *sum, GLOBAL float *fused,
    GLOBAL float *difference, GLOBAL float *rest, int n)
{
    const int i = ITEM;
    if (i >= n) return;
    quotient[i] = divided(a[i], b[i]);
    root[i] = rooted(a[i]);
    product[i] = a[i] * b[i];
    sum[i] = a[i] + b[i];
    fused[i] = fma(a[i], b[i], c[i]);
    difference[i] = a[i] * b[i] - c[i] * d[i];
    rest[i] = (a[i] + b[i]) - a[i];
}

// ---- Elementary functions ----

INLINE float larger(float a, float b) { return b > a ? b : a; }
INLINE float plus(float a, float b) { return a + b; }
INLINE float magnitude(float a) { return as_float(as_uint(a) & 0x7fffffffu); }

INLINE float power_of_e(float x)
{
    const float w = x >= -87.0f ? (x < 88.0f ? x : 88.0f) : 0.0f;
    const float n = fma(w, 1.44269504f, UNITS) - UNITS;
    const float r = fma(n, 2.12194440e-4f, fma(n, -0.693359375f, w));
    float p = 1.9875691500e-4f;
    p = fma(p, r, 1.3981999507e-3f);
    p = fma(p, r, 8.3334519073e-3f);
    p = fma(p, r, 4.1665795894e-2f);
    p = fma(p, r, 1.6666665459e-1f);
    p = fma(p, r, 5.0000001201e-1f);
    const float power = as_float((uint)((int)n + 127) << 23);
    const float found = (fma(p * r, r, r) + 1.0f) * power;
    return x != x ? x : x < -87.0f ? 0.0f : found;
}

INLINE float tangent(float x)
{
    const float z = x * x, s = magnitude(x);
    float p = -5.70498872745e-3f;
    p = fma(p, z, 2.06390887954e-2f);
    p = fma(p, z, -5.37397155531e-2f);
    p = fma(p, z, 1.33314422036e-1f);
    p = fma(p, z, -3.33332819422e-1f);
    const float far = 1.0f - divided(2.0f, 1.0f + power_of_e(s + s));
    return s < 0.625f ? fma(p * z, x, x) : as_float((as_uint(far) & 0x7fffffffu) | (as_uint(x) & 0x80000000u));
}

INLINE float capped(float x, float cap) { return tangent(divided(x, cap)) * cap; }
INLINE float silu(float x) { return divided(x, 1.0f + power_of_e(-x)); }

INLINE float gelu(float x)
{
    const float k = -2.0f * 0.7978845608f, u = (x + ((x * x) * x) * 0.044715f) * k;
    return divided(x, 1.0f + power_of_e(u));
}

// ---- Rows of floats: row GROUP_Y of strided arrays ----

/// x = capped(x).
KERNEL void cap_all(GLOBAL float *x, float cap, int n, int stride)
{
    const int i = ITEM;
    if (i < n) x[(long)GROUP_Y * stride + i] = capped(x[(long)GROUP_Y * stride + i], cap);
}

/// y[row, i] = activation(gate) * up; 32 columns of gate alternate with 32 of up.
KERNEL void gated(GLOBAL const float *both, GLOBAL float *y, int n, int stride, int is_gelu)
{
    const int i = ITEM;
    if (i >= stride) return;
    GLOBAL const float *from = both + (long)GROUP_Y * 2 * stride + i / 32 * 64 + i % 32;
    y[(long)GROUP_Y * stride + i] = i >= n ? 0.0f : (is_gelu ? gelu(from[0]) : silu(from[0])) * from[32];
}

/// x[row, i] = x[row, i] + y[row, i] * factor
KERNEL void add_scaled(GLOBAL float *x, GLOBAL const float *y, float factor, int n, int x_stride, int y_stride)
{
    const int i = ITEM;
    if (i >= n) return;
    const float part = y[(long)GROUP_Y * y_stride + i] * factor;
    x[(long)GROUP_Y * x_stride + i] = x[(long)GROUP_Y * x_stride + i] + part;
}

/// y[row, y_at + i] = x[row, i]
KERNEL void copy_columns(GLOBAL const float *x, GLOBAL float *y, int n, int x_stride, int y_stride, int y_at)
{
    const int i = ITEM;
    if (i < n) y[(long)GROUP_Y * y_stride + y_at + i] = x[(long)GROUP_Y * x_stride + i];
}

/// x[row, i] = the sum over taps t of (weight[t, i] + the row's delta of t and of i's group) * x[row - t, i], of the
/// GROUP_Y-th `block` rows; the last row first, for later rows read x before it changes. Deltas begin at column `at`.
KERNEL void convolve_block(GLOBAL float *x, GLOBAL const float *weight, GLOBAL const float *deltas, int n, int taps,
    int group, int block, int at, int x_stride, int stride)
{
    const int i = ITEM;
    if (i >= n) return;
    for (int r = block - 1; r >= 0; r--) {
        const long row = (long)GROUP_Y * block + r;
        float total = 0.0f;
        for (int t = 0; t <= min(r, taps - 1); t++) {
            const float factor = weight[t * n + i] + deltas[row * stride + at + t * (n / group) + i / group];
            total = fma(x[(row - t) * x_stride + i], factor, total);
        }
        x[row * x_stride + i] = total;
    }
}

/// The order of floats as integers, in which -0 and 0 are equal.
INLINE int key_of(float x)
{
    const int magnitude = (int)(as_uint(x) & 0x7fffffffu);
    return as_uint(x) >> 31 ? -magnitude : magnitude;
}

/// Of PEAKS numbers of a row, from GROUP_X * PEAKS on: the largest key, its lowest index, the next key and the largest
/// magnitude, as integers of found [rows, groups, 4].
#define PEAKS 1024
#define PEAK_LANES 64
KERNEL void find_peaks(GLOBAL const float *x, GLOBAL int *found, int n, int stride, int groups)
{
    LOCAL int tops[PEAK_LANES], places[PEAK_LANES], seconds[PEAK_LANES], magnitudes[PEAK_LANES];
    GLOBAL const float *from = x + (long)GROUP_Y * stride;
    LANES(l, PEAK_LANES) {
        int top = LOWEST_KEY, place = n, second = LOWEST_KEY, magnitude = 0;
        for (int i = GROUP_X * PEAKS + l; i < min(n, (GROUP_X + 1) * PEAKS); i += PEAK_LANES) {
            const int key = key_of(from[i]);
            magnitude = max(magnitude, max(key, -key));
            second = max(second, min(key, top));
            place = key > top || place == n ? i : place;
            top = max(top, key);
        }
        tops[l] = top;
        places[l] = place;
        seconds[l] = second;
        magnitudes[l] = magnitude;
    }
    for (int to = PEAK_LANES / 2; to; to >>= 1) {
        SYNC;
        LANES(l, to) {
            const int o = l + to, here = tops[l] > tops[o] || (tops[l] == tops[o] && places[l] < places[o]);
            seconds[l] = max(max(seconds[l], seconds[o]), min(tops[l], tops[o]));
            places[l] = here ? places[l] : places[o];
            tops[l] = max(tops[l], tops[o]);
            magnitudes[l] = max(magnitudes[l], magnitudes[o]);
        }
    }
    LANES(l, 1) {
        GLOBAL int *to = found + ((long)GROUP_Y * groups + GROUP_X) * 4;
        to[0] = tops[0];
        to[1] = places[0];
        to[2] = seconds[0];
        to[3] = magnitudes[0];
    }
}

/// RMSNorm of vectors of n numbers, GROUP_X-th in the row from `at` on: a work-group for each. With `gathered`, of the
/// rows in `pass` whose logits are wanted, from the `first` on. v and y may be the same.
KERNEL void rms_norm(GLOBAL const float *v, GLOBAL const float *w, GLOBAL float *y, GLOBAL const int *pass,
    int gathered, int first, int n, int at, int v_stride, int y_stride, float epsilon)
{
    LOCAL float s[16];
    const int row = gathered ? OF(WANTED, first + GROUP_Y) : GROUP_Y;
    GLOBAL const float *x = v + (long)row * v_stride + at + GROUP_X * n;
    GLOBAL float *out = y + (long)GROUP_Y * y_stride + at + GROUP_X * n;
    LANES(l, 16) {
        float sum = 0.0f;
        for (int i = l; i < n; i += 16) sum = fma(x[i], x[i], sum);
        s[l] = sum;
    }
    for (int to = 8; to; to >>= 1) {
        SYNC;
        LANES(l, to) s[l] = s[l] + s[l + to];
    }
    SYNC;
    const float inverse = divided(1.0f, rooted(divided(s[0], (float)n) + epsilon));
    LANES(i, n) out[i] = (x[i] * inverse) * w[i];
}

// ---- Rows rounded to bytes ----

/// d and 127 / m of the largest magnitude's bits; the second is 0 where all bytes are.
INLINE float scale_of(uint largest)
{
    if (largest >= 0x7f800000u) return as_float(0x7fc00000u);
    return as_float(largest) < 0x1p-64f ? 0.0f : divided(as_float(largest), 127.0f);
}

INLINE float inverse_of(uint largest)
{
    return largest >= 0x7f800000u || as_float(largest) < 0x1p-64f ? 0.0f : divided(127.0f, as_float(largest));
}

INLINE int byte_of(float x, float inverse)
{
    return inverse == 0.0f ? 0 : (int)(as_uint(fma(x, inverse, UNITS)) - 0x4b400000u);
}

/// A group of n numbers rounded: bytes, the scale, and the scaled sum of bytes (if `sums`).
INLINE void round_group(GLOBAL const float *x, GLOBAL signed char *q, GLOBAL float *d, GLOBAL float *sums, int n)
{
    uint largest = 0;
    for (int i = 0; i < n; i++) largest = max(largest, as_uint(x[i]) & 0x7fffffffu);
    const float scale = scale_of(largest), inverse = inverse_of(largest);
    int sum = 0;
    for (int i = 0; i < n; i++) {
        const int whole = byte_of(x[i], inverse);
        q[i] = (signed char)whole;
        sum += whole;
    }
    *d = scale;
    if (sums) *sums = scale * (float)sum;
}

/// Groups of 32 numbers of a row of x [rows, x_stride]: q [rows, q_stride], d and sums [rows, groups].
KERNEL void round_rows(GLOBAL const float *x, GLOBAL signed char *q, GLOBAL float *d, GLOBAL float *sums, int groups,
    int x_stride, int q_stride)
{
    const int g = ITEM;
    if (g >= groups) return;
    const long row = GROUP_Y, group = row * groups + g;
    round_group(x + row * x_stride + 32 * g, q + row * q_stride + 32 * g, d + group, sums + group, 32);
}

// ---- Keys, values and queries ----

/// Rotate and scale heads in place: `queries` heads, then key heads; elements i and i + n of the first 2n turn.
KERNEL void rotate_heads(GLOBAL float *qkv, GLOBAL const int *pass, GLOBAL const float *cosines,
    GLOBAL const float *sines, GLOBAL const float *scales, int stride, int dim, int n, int heads, int queries)
{
    const int i = ITEM % (dim - n), head = ITEM / (dim - n), p = OF(POSITIONS, GROUP_Y);
    if (head >= heads) return;
    GLOBAL float *x = qkv + (long)GROUP_Y * stride + head * dim;
    const float scale = head < queries ? scales[p] : 1.0f;
    if (i < n) {
        const float c = cosines[(long)p * n + i], s = sines[(long)p * n + i], a = x[i], b = x[i + n];
        x[i] = (a * c - b * s) * scale;
        x[i + n] = (b * c + a * s) * scale;
    } else
        x[i + n] = x[i + n] * scale;
}

/// Heads of a row from column `at` on to its slot in a cache [slots, width], or, without `cached`, to its row.
#define STORE(NAME, TYPE, VALUE)                                                                                       \
    KERNEL void store_##NAME(GLOBAL const float *qkv, GLOBAL TYPE *cache, GLOBAL const int *pass, int cached,          \
        int stride, int at, int width)                                                                                 \
    {                                                                                                                  \
        const int i = ITEM;                                                                                            \
        if (i >= width) return;                                                                                        \
        const float x = qkv[(long)GROUP_Y * stride + at + i];                                                          \
        cache[(long)(cached ? OF(SLOTS, GROUP_Y) : GROUP_Y) * width + i] = VALUE;                                      \
    }

STORE(float32, float, x)
STORE(bfloat16, ushort, (ushort)((as_uint(x) & 0x7fffffffu) > 0x7f800000u ? as_uint(x) >> 16 | 0x40u  // stays NaN
    : (as_uint(x) + 0x7fffu + (as_uint(x) >> 16 & 1u)) >> 16))

/// Likewise rounded, a head being a group: bytes, and scales [slots, heads].
KERNEL void store_int8(GLOBAL const float *qkv, GLOBAL signed char *q, GLOBAL float *d, GLOBAL const int *pass,
    int cached, int stride, int at, int heads, int dim)
{
    const int head = ITEM;
    if (head >= heads) return;
    const long to = (long)(cached ? OF(SLOTS, GROUP_Y) : GROUP_Y) * heads + head;
    round_group(qkv + (long)GROUP_Y * stride + at + head * dim, q + to * dim, d + to, 0, dim);
}

/// Copy lines of a cache in the order given; places [2, count].
KERNEL void move_lines(GLOBAL uchar *cache, GLOBAL const int *places, int count, int line)
{
    const int i = ITEM;
    if (i >= line) return;
    for (int k = 0; k < count; k++) cache[(long)places[count + k] * line + i] = cache[(long)places[k] * line + i];
}

// ---- Attention: a work-group for each row and head; blocks of 64 positions in turn ----

#define MOST_DIM 256
#define FOLD(values, JOIN)                                                                                             \
    for (int to = CACHE_BLOCK / 2; to; to >>= 1) {                                                                     \
        SYNC;                                                                                                          \
        LANES(j, to) values[j] = JOIN(values[j], values[j + to]);                                                      \
    }                                                                                                                  \
    SYNC;

#define COMMA ,
#define ATTEND(NAME, ARGUMENTS, SCORE, BEFORE_MIX, MIX)                                                                \
    KERNEL void attend_##NAME(ARGUMENTS, GLOBAL const int *pass, GLOBAL const float *sinks, int has_sinks,             \
        GLOBAL float *mixed, int mixed_stride, int heads, int kv_heads, int dim, int window, int chunk, float cap)     \
    {                                                                                                                  \
        LOCAL float scores[CACHE_BLOCK], folded[CACHE_BLOCK], e[CACHE_BLOCK], o[MOST_DIM];                             \
        LOCAL int slots[CACHE_BLOCK];                                                                                  \
        LOCAL signed char u[CACHE_BLOCK];                                                                              \
        const int head = GROUP_X, row = GROUP_Y, kv = head / (heads / kv_heads), end = OF(LENGTHS, row);               \
        int first = window ? max(0, end - window) : 0;                                                                 \
        if (chunk) first = max(first, (end - 1) / chunk * chunk);                                                      \
        float top = 0.0f, weight = 0.0f, mix_scale = 0.0f;                                                             \
        int joined = 0;                                                                                                \
        for (int block = first / CACHE_BLOCK; block <= (end - 1) / CACHE_BLOCK; block++, joined = 1) {                 \
            const int begin = block * CACHE_BLOCK;                                                                     \
            const int low = max(first - begin, 0), high = min(end - begin, CACHE_BLOCK);                               \
            SYNC;                                                                                                      \
            LANES(j, CACHE_BLOCK) {                                                                                    \
                float s = as_float(0xff800000u);                                                                       \
                if (j >= low && j < high) {                                                                            \
                    slots[j] = slot_of(pass, row, begin + j);                                                          \
                    const long at = (long)slots[j] * kv_heads + kv;                                                    \
                    SCORE                                                                                              \
                    if (cap != 0.0f) s = capped(s, cap);                                                               \
                }                                                                                                      \
                scores[j] = s;                                                                                         \
                folded[j] = s;                                                                                         \
            }                                                                                                          \
            FOLD(folded, larger)                                                                                       \
            const float m = folded[0];                                                                                 \
            SYNC;                                                                                                      \
            LANES(j, CACHE_BLOCK) {                                                                                    \
                e[j] = j >= low && j < high ? power_of_e(scores[j] - m) : 0.0f;                                        \
                folded[j] = e[j];                                                                                      \
            }                                                                                                          \
            FOLD(folded, plus)                                                                                         \
            const float l = folded[0];                                                                                 \
            SYNC;                                                                                                      \
            BEFORE_MIX                                                                                                 \
            const float next = joined ? larger(top, m) : m;                                                            \
            const float fade = power_of_e(top - next), gain = power_of_e(m - next);                                    \
            LANES(i, dim) {                                                                                            \
                float part = 0.0f;                                                                                     \
                MIX                                                                                                    \
                const float faded = o[i] * fade;                                                                       \
                o[i] = joined ? fma(part, gain, faded) : part;                                                         \
            }                                                                                                          \
            const float faded = weight * fade;                                                                         \
            weight = joined ? fma(l, gain, faded) : l;                                                                 \
            top = next;                                                                                                \
        }                                                                                                              \
        if (has_sinks) {                                                                                               \
            const float m = sinks[head], next = larger(top, m), fade = power_of_e(top - next);                         \
            const float gain = power_of_e(m - next), faded = weight * fade;                                            \
            LANES(i, dim) o[i] = fma(0.0f, gain, o[i] * fade);                                                         \
            weight = fma(1.0f, gain, faded);                                                                           \
        }                                                                                                              \
        LANES(i, dim) mixed[(long)row * mixed_stride + head * dim + i] = divided(o[i], weight);                        \
    }

#define ATTEND_NUMBERS(NAME, TYPE, WIDENED)                                                                            \
    ATTEND(NAME,                                                                                                       \
        GLOBAL const float *queries COMMA int stride COMMA GLOBAL const TYPE *keys COMMA GLOBAL const TYPE *values,    \
        {                                                                                                              \
            GLOBAL const float *x = queries + (long)row * stride + head * dim;                                         \
            s = 0.0f;                                                                                                  \
            for (int i = 0; i < dim; i++) s = fma(x[i], WIDENED(keys[at * dim + i]), s);                               \
        }, ,                                                                                                           \
        for (int j = low; j < high; j++)                                                                               \
            part = fma(e[j], WIDENED(values[((long)slots[j] * kv_heads + kv) * dim + i]), part);)

#define ITSELF(x) (x)
#define OF_BFLOAT16(x) as_float((uint)(x) << 16)
ATTEND_NUMBERS(float32, float, ITSELF)
ATTEND_NUMBERS(bfloat16, ushort, OF_BFLOAT16)

ATTEND(int8,
    GLOBAL const signed char *queries COMMA GLOBAL const float *query_scales COMMA GLOBAL const signed char *keys COMMA
    GLOBAL const float *key_scales COMMA GLOBAL const signed char *values COMMA GLOBAL const float *value_scales,
    {
        GLOBAL const signed char *x = queries + ((long)row * heads + head) * dim;
        int sum = 0;
        for (int i = 0; i < dim; i++) sum += (int)x[i] * (int)keys[at * dim + i];
        s = (query_scales[row * heads + head] * key_scales[at]) * (float)sum;
    },
    {
        LANES(j, CACHE_BLOCK) {
            scores[j] = j >= low && j < high ? e[j] * value_scales[(long)slots[j] * kv_heads + kv] : 0.0f;
            folded[j] = as_float(as_uint(scores[j]) & 0x7fffffffu);
        }
        for (int to = CACHE_BLOCK / 2; to; to >>= 1) {
            SYNC;
            LANES(j, to) folded[j] = as_float(max(as_uint(folded[j]), as_uint(folded[j + to])));
        }
        SYNC;
        const uint largest = as_uint(folded[0]);
        const float inverse = inverse_of(largest);
        mix_scale = scale_of(largest);
        LANES(j, CACHE_BLOCK) u[j] = (signed char)byte_of(scores[j], inverse);
        SYNC;
    },
    {
        int sum = 0;
        for (int j = low; j < high; j++)
            sum += (int)u[j] * (int)values[((long)slots[j] * kv_heads + kv) * dim + i];
        part = mix_scale * (float)sum;
    })

// ---- Linear layers: a work-item for each column and up to ROWS rows. Weights are the panels of kernels/storages.py,
// in which columns are adjacent, so that 32 neighbours read adjacent words.

#define TURNED(word, n) ((word) >> (n) | (word) << (32 - (n)))

/// A float16 as float32, exact.
INLINE float of_half(ushort h)
{
    const uint sign = (uint)(h & 0x8000) << 16, m = h & 0x3ff, e = h >> 10 & 31;
    if (e == 0) return as_float(sign | as_uint((float)m * 0x1p-24f));
    return as_float(sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | m << 13);
}

#define HALF(p, at) of_half(((GLOBAL const ushort *)(p))[at])
#define WORD(p, at) (((GLOBAL const uint *)(p))[at])
#define SIGNED(p, at) ((float)((GLOBAL const signed char *)(p))[at])

// Of each kind: the scale, the scale of the second 16 inputs and the least of column c, from the header h that eight
// groups share and from the group g.
#define SCALE const float scale = HALF(g, c), second = scale, least = 0.0f;
#define SCALE_AND_LEAST const float scale = HALF(g, c), second = scale, least = HALF(g, 32 + c);
#define SCALES_OF_K                                                                                                    \
    const float product = HALF(h, 32 + c) * (float)g[32 + c];                                                          \
    const float scale = HALF(h, c) * (float)g[c], second = scale, least = -product;
#define q8_0_SCALES SCALE
#define q4_0_SCALES SCALE
#define q5_0_SCALES SCALE
#define q4_1_SCALES SCALE_AND_LEAST
#define q5_1_SCALES SCALE_AND_LEAST
#define q4_k_SCALES SCALES_OF_K
#define q5_k_SCALES SCALES_OF_K
#define q6_k_SCALES                                                                                                    \
    const float scale = HALF(h, c) * SIGNED(g, c), second = HALF(h, c) * SIGNED(g, 32 + c), least = 0.0f;

// Of each kind: the loop over whole numbers of 16 inputs, ascending, ADD(input, v). Words are turned; the upper bits
// of values are in words of their own, placed as `upper_place` has it.
#define WORDS_OF_FOUR(ADD)                                                                                             \
    for (int w = 4 * side; w < 4 * side + 4; w++) {                                                                    \
        const uint turned = WORD(g + 64, 32 * w + c), word = TURNED(turned, 4);                                        \
        UNROLLED for (int b = 0; b < 4; b++) {                                                                         \
            const int v = (int)(word >> (8 * b) & 255u) - 128;                                                         \
            ADD(4 * w + b, v)                                                                                          \
        }                                                                                                              \
    }
#define WORDS_OF_EIGHT(AT, UPPER, MIDDLE, ADD)                                                                         \
    for (int w = 2 * side; w < 2 * side + 2; w++) {                                                                    \
        const uint turned = WORD(g + (AT), 32 * w + c), word = TURNED(turned, 12);                                     \
        UNROLLED for (int b = 0; b < 8; b++) {                                                                         \
            const int place = (b + 3) % 8, v = (int)((word >> (4 * b) & 15u) | (UPPER)) - (MIDDLE);                    \
            ADD(8 * w + b, v)                                                                                          \
        }                                                                                                              \
    }
#define FIFTH(AT) (WORD(g + (AT), c) >> (8 * (place / 2) + 2 * w + place % 2) & 1u) << 4
#define FIFTH_AND_SIXTH (WORD(g + 576, 32 * side + c) >> (8 * (place / 2) + 4 * (w % 2) + 2 * (place % 2)) & 3u) << 4
#define q8_0_VALUES(ADD) WORDS_OF_FOUR(ADD)
#define q4_0_VALUES(ADD) WORDS_OF_EIGHT(64, 0u, 8, ADD)
#define q4_1_VALUES(ADD) WORDS_OF_EIGHT(128, 0u, 0, ADD)
#define q4_k_VALUES(ADD) WORDS_OF_EIGHT(64, 0u, 0, ADD)
#define q5_0_VALUES(ADD) WORDS_OF_EIGHT(64, FIFTH(576), 16, ADD)
#define q5_1_VALUES(ADD) WORDS_OF_EIGHT(128, FIFTH(640), 0, ADD)
#define q5_k_VALUES(ADD) WORDS_OF_EIGHT(64, FIFTH(576), 0, ADD)
#define q6_k_VALUES(ADD) WORDS_OF_EIGHT(64, FIFTH_AND_SIXTH, 32, ADD)

// A tile computes ROWS rows; beyond the last row it computes that row again, and writes nothing.
#define EACH_ROW UNROLLED for (int r = 0; r < TILE; r++)
#define COLUMN_OF_TILE(ROWS, HEADER, SIZE)                                                                             \
    enum { TILE = ROWS };                                                                                              \
    const int column = ITEM, c = column % 32, row = GROUP_Y * ROWS;                                                    \
    if (column >= columns) return;                                                                                     \
    GLOBAL const uchar *panel = weights + (long)(column / 32) * ((long)groups * (SIZE) + groups / 8 * (HEADER));       \
    float total[ROWS], part[ROWS];                                                                                     \
    int from[ROWS];                                                                                                    \
    EACH_ROW {                                                                                                         \
        total[r] = part[r] = 0.0f;                                                                                     \
        from[r] = min(row + r, rows - 1);                                                                              \
    }
#define HEADER_AND_GROUP(HEADER, SIZE)                                                                                 \
    GLOBAL const uchar *h = panel + (long)(k / 8) * (8 * (SIZE) + (HEADER));                                           \
    GLOBAL const uchar *g = HEADER ? h + (HEADER) + k % 8 * (SIZE) : panel + (long)k * (SIZE);
#define ADD_WHOLE(input, v) EACH_ROW sum[r] += (v) * (int)x[from[r] * stride + (input)];
#define ADD_PRODUCT(input, v)                                                                                          \
    const float product = (side ? second : scale) * (float)(v), weight = product + least;                              \
    EACH_ROW part[r] = fma(x[(long)from[r] * stride + (input)], weight, part[r]);
#define ADD_PLAIN(input, weight) EACH_ROW part[r] = fma(x[(long)from[r] * stride + (input)], weight, part[r]);

/// y[row, y_at + column] = bias[column] + the rounded row, bytes [rows, 32 * groups], d and sums [rows, groups], times
/// weights of a quantised kind. IS_SPLIT: each 16 inputs have a scale; HAS_LEAST: weights have a least.
#define LINEAR_INT8(ROWS, KIND, HEADER, SIZE, IS_SPLIT, HAS_LEAST)                                                     \
    KERNEL void int8_##KIND##_##ROWS(GLOBAL const uchar *weights, GLOBAL const float *bias,                            \
        GLOBAL const signed char *bytes, GLOBAL const float *d, GLOBAL const float *sums, GLOBAL float *y, int groups, \
        int columns, int rows, int y_stride, int y_at)                                                                 \
    {                                                                                                                  \
        COLUMN_OF_TILE(ROWS, HEADER, SIZE)                                                                             \
        const int stride = 32 * groups;                                                                                \
        for (int k = 0; k < groups; k++) {                                                                             \
            HEADER_AND_GROUP(HEADER, SIZE)                                                                             \
            KIND##_SCALES                                                                                              \
            GLOBAL const signed char *x = bytes + 32 * k;                                                              \
            int sum[ROWS];                                                                                             \
            EACH_ROW sum[r] = 0;                                                                                       \
            for (int side = 0; side < 2; side++) {                                                                     \
                KIND##_VALUES(ADD_WHOLE)                                                                               \
                if (!IS_SPLIT && !side) continue;                                                                      \
                EACH_ROW {                                                                                             \
                    total[r] = fma((side ? second : scale) * d[from[r] * groups + k], (float)sum[r], total[r]);        \
                    sum[r] = 0;                                                                                        \
                }                                                                                                      \
            }                                                                                                          \
            if (HAS_LEAST) EACH_ROW total[r] = fma(least, sums[from[r] * groups + k], total[r]);                       \
        }                                                                                                              \
        EACH_ROW if (row + r < rows) y[(long)(row + r) * y_stride + y_at + column] = total[r] + bias[column];          \
    }

/// y[row, y_at + column] = bias[column] + x [rows, stride] times weights of any kind, in blocks of 128 inputs.
#define LINEAR_FLOAT(ROWS, KIND, HEADER, SIZE, SCALES, VALUES)                                                         \
    KERNEL void float_##KIND##_##ROWS(GLOBAL const uchar *weights, GLOBAL const float *bias,                           \
        GLOBAL const float *numbers, GLOBAL float *y, int groups, int columns, int rows, int stride,                   \
        int y_stride, int y_at)                                                                                        \
    {                                                                                                                  \
        COLUMN_OF_TILE(ROWS, HEADER, SIZE)                                                                             \
        for (int k = 0; k < groups; k++) {                                                                             \
            HEADER_AND_GROUP(HEADER, SIZE)                                                                             \
            SCALES                                                                                                     \
            GLOBAL const float *x = numbers + 32 * k;                                                                  \
            for (int side = 0; side < 2; side++) { VALUES }                                                            \
            if (k % 4 < 3 && k < groups - 1) continue;                                                                 \
            EACH_ROW {                                                                                                 \
                total[r] = total[r] + part[r];                                                                         \
                part[r] = 0.0f;                                                                                        \
            }                                                                                                          \
        }                                                                                                              \
        EACH_ROW if (row + r < rows) y[(long)(row + r) * y_stride + y_at + column] = total[r] + bias[column];          \
    }

#define PLAIN_VALUES(VALUE)                                                                                            \
    for (int i = 16 * side; i < 16 * side + 16; i++) { const float weight = VALUE; ADD_PLAIN(i, weight) }
#define WIDENED_BFLOAT16 as_float(i % 2 ? WORD(g, 32 * (i / 2) + c) & 0xffff0000u : WORD(g, 32 * (i / 2) + c) << 16)

// The kinds as `source.py` asks for them, for a row and for several.
#define QUANTISED(ROWS, KIND, HEADER, SIZE, IS_SPLIT, HAS_LEAST)                                                       \
    LINEAR_INT8(ROWS, KIND, HEADER, SIZE, IS_SPLIT, HAS_LEAST)                                                         \
    LINEAR_FLOAT(ROWS, KIND, HEADER, SIZE, KIND##_SCALES, KIND##_VALUES(ADD_PRODUCT))
#define LINEAR_q8_0(ROWS) QUANTISED(ROWS, q8_0, 0, 1088, 0, 0)
#define LINEAR_q4_0(ROWS) QUANTISED(ROWS, q4_0, 0, 576, 0, 0)
#define LINEAR_q4_1(ROWS) QUANTISED(ROWS, q4_1, 0, 640, 0, 1)
#define LINEAR_q5_0(ROWS) QUANTISED(ROWS, q5_0, 0, 704, 0, 0)
#define LINEAR_q5_1(ROWS) QUANTISED(ROWS, q5_1, 0, 768, 0, 1)
#define LINEAR_q4_k(ROWS) QUANTISED(ROWS, q4_k, 128, 576, 0, 1)
#define LINEAR_q5_k(ROWS) QUANTISED(ROWS, q5_k, 128, 704, 0, 1)
#define LINEAR_q6_k(ROWS) QUANTISED(ROWS, q6_k, 64, 832, 1, 0)
#define LINEAR_float32(ROWS)                                                                                           \
    LINEAR_FLOAT(ROWS, float32, 0, 4096, , PLAIN_VALUES(((GLOBAL const float *)g)[32 * i + c]))
#define LINEAR_float16(ROWS) LINEAR_FLOAT(ROWS, float16, 0, 2048, , PLAIN_VALUES(HALF(g, 32 * i + c)))
#define LINEAR_bfloat16(ROWS) LINEAR_FLOAT(ROWS, bfloat16, 0, 2048, , PLAIN_VALUES(WIDENED_BFLOAT16))
