// Fused causal attention for training on a CPU, forward and backward, one head per task.
//
//   logit_ij = a_hi * (q_i . k_j) + b_hi * prior_h(i - j)      j <= i
//
// One form serves every position encoding: BAM with SSMax has a = c_i / sqrt(D), b = c_i; ALiBi b = 1 and a
// linear prior; NoPE and RoPE (rotated q, k) b = 0; a local window a prior of -1e30 beyond it.
// Probabilities are never stored: the backward pass recomputes them from the saved log-sum-exp.
//
//   qkv, dqkv   [batch][length][3][heads][D]     (q, k and v side by side, as one matrix product leaves them)
//   a, b        [heads][length]                  da, db    [batch][heads][length]
//   prior       [heads][length + PAD], REVERSED: prior_h(distance) at length - 1 - distance, zeros behind
//   dprior      [batch][heads][length + PAD]
//   out, dout   [batch][length][heads][D]        lse       [batch][heads][length]
// length is a multiple of LANES. Vectors are GCC's, so the compiler picks the instruction set.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef D
#define D 32
#endif
enum { LANES = 16, VECS = D / LANES, ROWS = 8, PAD = 32 };
_Static_assert(D % LANES == 0, "head size must be a multiple of the vector width");

typedef float vf __attribute__((vector_size(LANES * sizeof(float))));
typedef float vfu __attribute__((vector_size(LANES * sizeof(float)), aligned(4)));
typedef int32_t vi __attribute__((vector_size(LANES * sizeof(int32_t))));

static const float kMasked = -1e30f;
static const float kNegligible = -30.0f;  // e^-30 of a row's largest term is far below float32 resolution

static inline vf load(const float* p) { return *(const vfu*)p; }
static inline void store(float* p, vf x) { *(vfu*)p = x; }
static inline vf splat(float x) { return (vf){0} + x; }
static inline vf blend(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
static inline vf max2(vf a, vf b) { return blend(a > b, a, b); }

static inline float sum_lanes(vf x) {
  float s = 0;
  for (int l = 0; l < LANES; l++) s += x[l];
  return s;
}

static inline float max_lanes(vf x) {
  float m = x[0];
  for (int l = 1; l < LANES; l++) m = x[l] > m ? x[l] : m;
  return m;
}

static inline vf lane_index(void) {
  vf x;
  for (int l = 0; l < LANES; l++) x[l] = (float)l;
  return x;
}

// e^x for x <= 0, clamped at -80 so that no denormal appears: 2^n * polynomial(f), |f| <= ln(2)/2.
static inline vf exp_nonpositive(vf x) {
  x = max2(x, splat(-80.0f));
  const float round_magic = 12582912.0f;  // 1.5 * 2^23
  vf n = (x * 1.44269504f + round_magic) - round_magic;
  vf f = x - n * 0.693359375f + n * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  vi exponent = (__builtin_convertvector(n, vi) + 127) << 23;
  return p * (vf)exponent;
}

// s[ROWS][lds] = x[ROWS][D] . yt[D][ldy] for columns [lo, hi), both multiples of LANES
static void rows_times_columns(const float* x, const float* yt, int ldy, int lo, int hi, float* s, int lds) {
  for (int j = lo; j < hi; j += LANES) {
    vf acc[ROWS];
    for (int r = 0; r < ROWS; r++) acc[r] = splat(0);
    for (int d = 0; d < D; d++) {
      vf y = load(yt + d * ldy + j);
      for (int r = 0; r < ROWS; r++) acc[r] += x[r * D + d] * y;
    }
    for (int r = 0; r < ROWS; r++) store(s + r * lds + j, acc[r]);
  }
}

// x[ROWS][D] = s[ROWS][lds] . y[][D] over rows [lo, hi) of y
static void weights_times_rows(const float* s, int lds, const float* y, int lo, int hi, float* x) {
  vf acc[ROWS][VECS];
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < VECS; c++) acc[r][c] = splat(0);
  for (int j = lo; j < hi; j++)
    for (int c = 0; c < VECS; c++) {
      vf row = load(y + j * D + c * LANES);
      for (int r = 0; r < ROWS; r++) acc[r][c] += s[r * lds + j] * row;
    }
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < VECS; c++) store(x + r * D + c * LANES, acc[r][c]);
}

// y[j][D] += sum_r s[r][j] * x[r][D] over [lo, hi)
static void add_outer(const float* s, int lds, const float* x, int lo, int hi, float* y) {
  vf rows[ROWS][VECS];
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < VECS; c++) rows[r][c] = load(x + r * D + c * LANES);
  for (int j = lo; j < hi; j++)
    for (int c = 0; c < VECS; c++) {
      vf acc = load(y + j * D + c * LANES);
      for (int r = 0; r < ROWS; r++) acc += s[r * lds + j] * rows[r][c];
      store(y + j * D + c * LANES, acc);
    }
}

typedef struct {
  int length, lds;
  float *q, *k, *v, *kt, *vt;       // q scaled by a; [length][D], transposed [D][length]
  float *s, *p, *dq, *dk, *dv, *g;  // s, p: [ROWS][lds]; the others [length][D]
  float* q_norm;                    // [length] |a q|
  float k_norm;                     // largest |k|
  int monotone;                     // the prior never grows with distance
} Head;

static float* take(float** arena, size_t count) {
  float* p = *arena;
  *arena += count;
  return p;
}

static float* head_alloc(Head* h, int length) {
  size_t matrix = (size_t)length * D, lds = length + LANES;
  float* memory = aligned_alloc(64, sizeof(float) * (9 * matrix + 2 * ROWS * lds + length));
  float* arena = memory;
  h->length = length;
  h->lds = (int)lds;
  float** matrices[] = {&h->q, &h->k, &h->v, &h->kt, &h->vt, &h->dq, &h->dk, &h->dv, &h->g};
  for (int i = 0; i < 9; i++) *matrices[i] = take(&arena, matrix);
  h->s = take(&arena, ROWS * lds);
  h->p = take(&arena, ROWS * lds);
  h->q_norm = take(&arena, length);
  return memory;
}

static void head_gather(Head* h, const float* qkv, int heads, const float* a, const float* prior) {
  const int length = h->length;
  const size_t width = (size_t)heads * D;
  float k_norm2 = 0;
  for (int i = 0; i < length; i++) {
    const float* row = qkv + i * 3 * width;
    float qq = 0, kk = 0;
    for (int d = 0; d < D; d++) {
      float q = row[d] * a[i], k = row[width + d], v = row[2 * width + d];
      h->q[i * D + d] = q;
      h->k[i * D + d] = k;
      h->v[i * D + d] = v;
      h->kt[d * length + i] = k;
      h->vt[d * length + i] = v;
      qq += q * q;
      kk += k * k;
    }
    h->q_norm[i] = sqrtf(qq);
    k_norm2 = kk > k_norm2 ? kk : k_norm2;
  }
  h->k_norm = sqrtf(k_norm2);
  h->monotone = 1;
  for (int t = 0; t + 1 < length; t++) h->monotone &= prior[t] <= prior[t + 1];
}

// First key that rows [i0, i0 + ROWS) need: all keys before it are certified negligible, because
// |q.k| <= |q||k| on both sides and the prior only falls with distance.
static int first_key(const Head* h, int i0, const float* b, const float* prior) {
  if (!h->monotone) return 0;
  int lo = 0;
  for (; lo + LANES <= i0; lo += LANES)
    for (int i = i0; i < i0 + ROWS; i++) {
      const float* p = prior + h->length - 1 - i;
      if (b[i] < 0 || 2 * h->q_norm[i] * h->k_norm + b[i] * (p[lo + LANES - 1] - p[i]) > kNegligible) return lo;
    }
  return lo;
}

// Logits of row i over [lo, hi) from the products in s; columns beyond i masked.
static inline vf logits(const float* s, const float* p, float b, int i, int j, vf lanes) {
  vf x = load(s + j) + b * load(p + j);
  if (j + LANES - 1 > i) x = blend(lanes + (float)j > splat((float)i), splat(kMasked), x);
  return x;
}

void attention_forward(int batch, int heads, int length, const float* qkv, const float* a, const float* b,
                       const float* prior, float* out, float* lse) {
  const size_t width = (size_t)heads * D;
  const vf lanes = lane_index();
#pragma omp parallel
  {
    Head h;
    float* memory = head_alloc(&h, length);
#pragma omp for
    for (int t = 0; t < batch * heads; t++) {
      const int n = t / heads, head = t % heads;
      const float *pr = prior + (size_t)head * (length + PAD), *bh = b + head * length;
      head_gather(&h, qkv + n * length * 3 * width + head * D, heads, a + head * length, pr);
      for (int i0 = 0; i0 < length; i0 += ROWS) {
        const int lo = first_key(&h, i0, bh, pr), hi = (i0 + ROWS + LANES - 1) / LANES * LANES;
        float o[ROWS * D], inverse[ROWS];
        rows_times_columns(h.q + i0 * D, h.kt, length, lo, hi, h.s, h.lds);
        for (int r = 0; r < ROWS; r++) {
          const int i = i0 + r;
          const float* p = pr + length - 1 - i;
          float* s = h.s + r * h.lds;
          vf m = splat(kMasked), sum = splat(0);
          for (int j = lo; j < hi; j += LANES) {
            vf x = logits(s, p, bh[i], i, j, lanes);
            store(s + j, x);
            m = max2(m, x);
          }
          const float largest = max_lanes(m);
          for (int j = lo; j < hi; j += LANES) {
            vf e = exp_nonpositive(load(s + j) - largest);
            store(s + j, e);
            sum += e;
          }
          const float total = sum_lanes(sum);
          inverse[r] = 1.0f / total;
          lse[(size_t)t * length + i] = largest + logf(total);
        }
        weights_times_rows(h.s, h.lds, h.v, lo, i0 + ROWS, o);
        for (int r = 0; r < ROWS; r++)
          for (int d = 0; d < D; d++) out[(n * length + i0 + r) * width + head * D + d] = o[r * D + d] * inverse[r];
      }
    }
    free(memory);
  }
}

void attention_backward(int batch, int heads, int length, const float* qkv, const float* a, const float* b,
                        const float* prior, const float* out, const float* lse, const float* dout, float* dqkv,
                        float* da, float* db, float* dprior) {
  const size_t width = (size_t)heads * D;
  const vf lanes = lane_index();
#pragma omp parallel
  {
    Head h;
    float* memory = head_alloc(&h, length);
#pragma omp for
    for (int t = 0; t < batch * heads; t++) {
      const int n = t / heads, head = t % heads;
      const size_t origin = n * length * 3 * width + head * D;
      const float *pr = prior + (size_t)head * (length + PAD), *ah = a + head * length, *bh = b + head * length;
      float* dpr = dprior + (size_t)t * (length + PAD);
      memset(dpr, 0, sizeof(float) * (length + PAD));
      memset(h.dk, 0, sizeof(float) * length * D);
      memset(h.dv, 0, sizeof(float) * length * D);
      head_gather(&h, qkv + origin, heads, ah, pr);
      for (int i = 0; i < length; i++) memcpy(h.g + i * D, dout + (n * length + i) * width + head * D, sizeof(float) * D);
      for (int i0 = 0; i0 < length; i0 += ROWS) {
        const int lo = first_key(&h, i0, bh, pr), hi = (i0 + ROWS + LANES - 1) / LANES * LANES;
        rows_times_columns(h.q + i0 * D, h.kt, length, lo, hi, h.s, h.lds);
        rows_times_columns(h.g + i0 * D, h.vt, length, lo, hi, h.p, h.lds);
        for (int r = 0; r < ROWS; r++) {
          const int i = i0 + r;
          const float *p = pr + length - 1 - i, *o = out + (n * length + i) * width + head * D;
          float *dp = dpr + length - 1 - i, *s = h.s + r * h.lds, *w = h.p + r * h.lds;
          float mean = 0;
          for (int d = 0; d < D; d++) mean += o[d] * h.g[i * D + d];
          const float row_lse = lse[(size_t)t * length + i];
          vf db_row = splat(0);
          for (int j = lo; j < hi; j += LANES) {  // s: dlogit, w: probability
            vf prob = exp_nonpositive(logits(s, p, bh[i], i, j, lanes) - row_lse);
            vf ds = prob * (load(w + j) - mean);
            if (j + LANES - 1 > i) {
              vi future = lanes + (float)j > splat((float)i);
              prob = blend(future, splat(0), prob);
              ds = blend(future, splat(0), ds);
            }
            store(w + j, prob);
            store(s + j, ds);
            db_row += ds * load(p + j);
            store(dp + j, load(dp + j) + bh[i] * ds);
          }
          db[(size_t)t * length + i] = sum_lanes(db_row);
        }
        weights_times_rows(h.s, h.lds, h.k, lo, i0 + ROWS, h.dq + i0 * D);
        add_outer(h.s, h.lds, h.q + i0 * D, lo, i0 + ROWS, h.dk);
        add_outer(h.p, h.lds, h.g + i0 * D, lo, i0 + ROWS, h.dv);
      }
      for (int i = 0; i < length; i++) {
        const float* q = qkv + origin + i * 3 * width;
        float* d_row = dqkv + origin + i * 3 * width;
        float da_row = 0;
        for (int d = 0; d < D; d++) {
          const float dq = h.dq[i * D + d];
          da_row += dq * q[d];
          d_row[d] = dq * ah[i];
          d_row[width + d] = h.dk[i * D + d];
          d_row[2 * width + d] = h.dv[i * D + d];
        }
        da[(size_t)t * length + i] = da_row;
      }
    }
    free(memory);
  }
}
