/* Single-threaded float32 kernels for training small Llama models on an AVX-512 CPU.
 * The large matrix products stay with BLAS; this file holds what torch does slowly.
 * Build: gcc -O3 -march=native -ffast-math -shared -fPIC -o kernels.so kernels.c -lm      */
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#define D 64  /* head size */
#define BR 32 /* query rows per attention block */

static inline __m512 vexp(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.f));
  __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f));
  __m512 n = _mm512_roundscale_ps(t, 8), f = _mm512_sub_ps(t, n);
  __m512 p = _mm512_set1_ps(1.5403530e-4f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.33335581e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.61812911e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.55041087e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.40226507e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.93147181e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(p, n);
}

/* C[M,N] (+)= A B, A(r,k) = A[r*ars + k*acs], B and C row-major; M % 8 == 0, N % 32 == 0 */
static void mm(int M, int N, int K, const float *A, long ars, long acs, const float *B, long ldb,
               float *C, long ldc, int add) {
  for (int n = 0; n < N; n += 32)
    for (int m = 0; m < M; m += 8) {
      __m512 c0[8], c1[8];
      float *c = C + m * ldc + n;
#pragma GCC unroll 8
      for (int r = 0; r < 8; r++) {
        c0[r] = add ? _mm512_loadu_ps(c + r * ldc) : _mm512_setzero_ps();
        c1[r] = add ? _mm512_loadu_ps(c + r * ldc + 16) : _mm512_setzero_ps();
      }
      const float *a = A + m * ars, *b = B + n;
      for (int k = 0; k < K; k++, a += acs, b += ldb) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) {
          __m512 x = _mm512_set1_ps(a[r * ars]);
          c0[r] = _mm512_fmadd_ps(x, b0, c0[r]);
          c1[r] = _mm512_fmadd_ps(x, b1, c1[r]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < 8; r++) {
        _mm512_storeu_ps(c + r * ldc, c0[r]);
        _mm512_storeu_ps(c + r * ldc + 16, c1[r]);
      }
    }
}

static float *scratch(int slot, size_t n) {
  static float *p[16];
  static size_t have[16];
  if (have[slot] < n) {
    free(p[slot]);
    p[slot] = aligned_alloc(4096, (n * 4 + 4095) & ~4095ul);
    have[slot] = n;
  }
  return p[slot];
}
static void pack(float *dst, const float *src, long ld, int T) {
  for (int t = 0; t < T; t++) memcpy(dst + t * D, src + t * ld, D * 4);
}
static void packT(float *dst, const float *src, long ld, int T) { /* [T,D] -> [D,T] */
  for (int t = 0; t < T; t += 16)
    for (int d = 0; d < D; d++)
      for (int k = 0; k < 16; k++) dst[(long)d * T + t + k] = src[(t + k) * ld + d];
}

/* Rotary positions, half-split as in Hugging Face; cs = [T][32 cos, 32 sin]; sign -1 undoes it. */
void rope(float *x, const float *cs, long rows, int T, int heads, long ld, float sign) {
  for (long r = 0; r < rows; r++) {
    const float *c = cs + (r % T) * 64, *s = c + 32;
    for (int h = 0; h < heads; h++) {
      float *p = x + r * ld + h * D;
      for (int j = 0; j < 32; j++) {
        float a = p[j], b = p[j + 32], sn = sign * s[j];
        p[j] = a * c[j] - b * sn;
        p[j + 32] = b * c[j] + a * sn;
      }
    }
  }
}

/* Causal grouped-query attention. qkv rows hold HQ query, HK key, HK value heads; T % 32 == 0. */
void attn_fwd(const float *qkv, float *o, float *lse, int B, int T, int HQ, int HK) {
  long ld = (HQ + 2 * HK) * D, ldo = HQ * D, ls = T + 16;
  float *Kt = scratch(0, (size_t)T * D), *V = scratch(1, (size_t)T * D), *S = scratch(2, BR * ls);
  float Q[BR * D] __attribute__((aligned(64))), O[BR * D] __attribute__((aligned(64)));
  float scale = 1.f / sqrtf(D);
  int G = HQ / HK;
  for (int b = 0; b < B; b++)
    for (int g = 0; g < HK; g++) {
      const float *base = qkv + (long)b * T * ld;
      packT(Kt, base + (HQ + g) * D, ld, T);
      pack(V, base + (HQ + HK + g) * D, ld, T);
      for (int h = g * G; h < (g + 1) * G; h++)
        for (int i0 = 0; i0 < T; i0 += BR) {
          int n = i0 + BR;
          for (int r = 0; r < BR; r++)
            for (int d = 0; d < D; d++) Q[r * D + d] = scale * base[(i0 + r) * ld + h * D + d];
          mm(BR, n, D, Q, D, 1, Kt, T, S, ls, 0);
          float inv[BR];
          for (int r = 0; r < BR; r++) {
            float *s = S + r * ls;
            int i = i0 + r;
            for (int j = i + 1; j < n; j++) s[j] = -1e30f;
            __m512 mx = _mm512_set1_ps(-1e30f);
            for (int j = 0; j < n; j += 16) mx = _mm512_max_ps(mx, _mm512_loadu_ps(s + j));
            float m = _mm512_reduce_max_ps(mx);
            __m512 vm = _mm512_set1_ps(m), sum = _mm512_setzero_ps();
            for (int j = 0; j < n; j += 16) {
              __m512 e = vexp(_mm512_sub_ps(_mm512_loadu_ps(s + j), vm));
              sum = _mm512_add_ps(sum, e);
              _mm512_storeu_ps(s + j, e);
            }
            for (int j = i + 1; j < n; j++) s[j] = 0;
            float z = _mm512_reduce_add_ps(sum);
            inv[r] = 1.f / z;
            lse[((long)b * HQ + h) * T + i] = m + logf(z);
          }
          mm(BR, D, n, S, ls, 1, V, D, O, D, 0);
          for (int r = 0; r < BR; r++)
            for (int d = 0; d < D; d++)
              o[((long)b * T + i0 + r) * ldo + h * D + d] = O[r * D + d] * inv[r];
        }
    }
}

void attn_bwd(const float *qkv, const float *o, const float *lse, const float *dout, float *dqkv,
              int B, int T, int HQ, int HK) {
  long ld = (HQ + 2 * HK) * D, ldo = HQ * D, ls = T + 16;
  float *Kt = scratch(0, (size_t)T * D), *K = scratch(1, (size_t)T * D),
        *Vt = scratch(3, (size_t)T * D);
  float *P = scratch(2, BR * ls), *S = scratch(4, BR * ls), *dK = scratch(5, (size_t)T * D),
        *dV = scratch(6, (size_t)T * D);
  float Q[BR * D] __attribute__((aligned(64))), G_[BR * D] __attribute__((aligned(64))),
      dQ[BR * D] __attribute__((aligned(64)));
  float scale = 1.f / sqrtf(D);
  int G = HQ / HK;
  for (int b = 0; b < B; b++)
    for (int g = 0; g < HK; g++) {
      const float *base = qkv + (long)b * T * ld;
      float *dbase = dqkv + (long)b * T * ld;
      packT(Kt, base + (HQ + g) * D, ld, T);
      pack(K, base + (HQ + g) * D, ld, T);
      packT(Vt, base + (HQ + HK + g) * D, ld, T);
      memset(dK, 0, (size_t)T * D * 4);
      memset(dV, 0, (size_t)T * D * 4);
      for (int h = g * G; h < (g + 1) * G; h++)
        for (int i0 = 0; i0 < T; i0 += BR) {
          int n = i0 + BR;
          float dl[BR];
          for (int r = 0; r < BR; r++) {
            const float *go = dout + ((long)b * T + i0 + r) * ldo + h * D,
                        *oo = o + ((long)b * T + i0 + r) * ldo + h * D;
            float z = 0;
            for (int d = 0; d < D; d++) {
              Q[r * D + d] = scale * base[(i0 + r) * ld + h * D + d];
              G_[r * D + d] = go[d];
              z += go[d] * oo[d];
            }
            dl[r] = z;
          }
          mm(BR, n, D, Q, D, 1, Kt, T, P, ls, 0);
          mm(BR, n, D, G_, D, 1, Vt, T, S, ls, 0);
          for (int r = 0; r < BR; r++) {
            float *p = P + r * ls, *s = S + r * ls;
            int i = i0 + r;
            __m512 l = _mm512_set1_ps(lse[((long)b * HQ + h) * T + i]), dd = _mm512_set1_ps(dl[r]);
            for (int j = 0; j < n; j += 16) {
              __m512 e = vexp(_mm512_sub_ps(_mm512_loadu_ps(p + j), l));
              _mm512_storeu_ps(p + j, e);
              _mm512_storeu_ps(s + j, _mm512_mul_ps(e, _mm512_sub_ps(_mm512_loadu_ps(s + j), dd)));
            }
            for (int j = i + 1; j < n; j++) p[j] = s[j] = 0;
          }
          mm(BR, D, n, S, ls, 1, K, D, dQ, D, 0);
          for (int r = 0; r < BR; r++)
            for (int d = 0; d < D; d++) dbase[(i0 + r) * ld + h * D + d] = scale * dQ[r * D + d];
          mm(n, D, BR, S, 1, ls, Q, D, dK, D, 1);
          mm(n, D, BR, P, 1, ls, G_, D, dV, D, 1);
        }
      for (int t = 0; t < T; t++) {
        memcpy(dbase + t * ld + (HQ + g) * D, dK + t * D, D * 4);
        memcpy(dbase + t * ld + (HQ + HK + g) * D, dV + t * D, D * 4);
      }
    }
}

/* y = x * rstd * w */
void rms_fwd(const float *x, const float *w, float *y, float *rstd, long rows, int H, float eps) {
  for (long r = 0; r < rows; r++) {
    const float *p = x + r * H;
    float s = 0;
    for (int i = 0; i < H; i++) s += p[i] * p[i];
    s = 1.f / sqrtf(s / H + eps);
    rstd[r] = s;
    for (int i = 0; i < H; i++) y[r * H + i] = p[i] * s * w[i];
  }
}
/* dx += gradient through the norm; dw += */
void rms_bwd(const float *dy, const float *x, const float *rstd, const float *w, float *dx,
             float *dw, long rows, int H) {
  for (long r = 0; r < rows; r++) {
    const float *g = dy + r * H, *p = x + r * H;
    float s = rstd[r], z = 0;
    for (int i = 0; i < H; i++) z += g[i] * w[i] * p[i];
    z *= s * s * s / H;
    for (int i = 0; i < H; i++) {
      dw[i] += g[i] * p[i] * s;
      dx[r * H + i] += g[i] * w[i] * s - p[i] * z;
    }
  }
}

/* rows of gu hold gate then up, each of width I */
void swiglu_fwd(const float *gu, float *m, long rows, int I) {
  __m512 one = _mm512_set1_ps(1);
  for (long r = 0; r < rows; r++)
    for (int i = 0; i < I; i += 16) {
      __m512 g = _mm512_loadu_ps(gu + r * 2 * I + i), u = _mm512_loadu_ps(gu + r * 2 * I + I + i);
      __m512 s =
          _mm512_div_ps(one, _mm512_add_ps(one, vexp(_mm512_sub_ps(_mm512_setzero_ps(), g))));
      _mm512_storeu_ps(m + r * I + i, _mm512_mul_ps(_mm512_mul_ps(g, s), u));
    }
}
/* in place: gu becomes its gradient */
void swiglu_bwd(float *gu, const float *dm, long rows, int I) {
  __m512 one = _mm512_set1_ps(1);
  for (long r = 0; r < rows; r++)
    for (int i = 0; i < I; i += 16) {
      float *pg = gu + r * 2 * I + i, *pu = pg + I;
      __m512 g = _mm512_loadu_ps(pg), u = _mm512_loadu_ps(pu), d = _mm512_loadu_ps(dm + r * I + i);
      __m512 s =
          _mm512_div_ps(one, _mm512_add_ps(one, vexp(_mm512_sub_ps(_mm512_setzero_ps(), g))));
      __m512 t = _mm512_fmadd_ps(g, _mm512_sub_ps(one, s), one);
      _mm512_storeu_ps(pg, _mm512_mul_ps(_mm512_mul_ps(d, u), _mm512_mul_ps(s, t)));
      _mm512_storeu_ps(pu, _mm512_mul_ps(d, _mm512_mul_ps(g, s)));
    }
}

static float softmax_row(float *x, int V,
                         float *lse) { /* in place; returns the largest probability */
  __m512 mx = _mm512_set1_ps(-1e30f), sum = _mm512_setzero_ps();
  for (int j = 0; j < V; j += 16) mx = _mm512_max_ps(mx, _mm512_loadu_ps(x + j));
  float m = _mm512_reduce_max_ps(mx);
  __m512 vm = _mm512_set1_ps(m);
  for (int j = 0; j < V; j += 16) {
    __m512 e = vexp(_mm512_sub_ps(_mm512_loadu_ps(x + j), vm));
    sum = _mm512_add_ps(sum, e);
    _mm512_storeu_ps(x + j, e);
  }
  float z = _mm512_reduce_add_ps(sum);
  *lse = m + logf(z);
  __m512 inv = _mm512_set1_ps(1.f / z);
  for (int j = 0; j < V; j += 16)
    _mm512_storeu_ps(x + j, _mm512_mul_ps(_mm512_loadu_ps(x + j), inv));
  return 1.f / z;
}
/* cross entropy: logits become their gradient times scale; returns the summed loss */
double ce(float *logits, const long *target, long rows, int V, float scale) {
  double loss = 0;
  for (long r = 0; r < rows; r++) {
    float *x = logits + r * V, at = x[target[r]], l;
    softmax_row(x, V, &l);
    loss += l - at;
    x[target[r]] -= 1;
    for (int j = 0; j < V; j++) x[j] *= scale;
  }
  return loss;
}
/* distillation: student logits become the gradient of w_kl*KL(teacher||student) + w_ce*CE; teacher logits
 * become probabilities. out[0] += KL, out[1] += CE, out[2] += equal argmax, out[3] += sum min(p, q). */
void kd(float *st, float *te, const long *target, long rows, int V, float scale, float w_kl,
        float w_ce, double *out) {
  for (long r = 0; r < rows; r++) {
    float *s = st + r * V, *t = te + r * V, ls, lt, at = s[target[r]];
    int as = 0, an = 0;
    float ms = -1e30f, mt = -1e30f;
    for (int j = 0; j < V; j++) {
      if (s[j] > ms) {
        ms = s[j];
        as = j;
      }
      if (t[j] > mt) {
        mt = t[j];
        an = j;
      }
    }
    softmax_row(s, V, &ls);
    softmax_row(t, V, &lt);
    double kl = 0, ov = 0;
    for (int j = 0; j < V; j++) {
      float p = t[j], q = s[j];
      kl += p * (logf(p + 1e-30f) - logf(q + 1e-30f));
      ov += p < q ? p : q;
      s[j] = scale * ((w_kl + w_ce) * q - w_kl * p);
    }
    s[target[r]] -= scale * w_ce;
    out[0] += kl;
    out[1] += ls - at;
    out[2] += as == an;
    out[3] += ov;
  }
}
