// Ward clustering of each document's tokens, which may have weights, and the mean of each cluster.
//
// The nearest-neighbour chain algorithm, O(n**2): each cluster of the chain is the nearest of the one before it, and
// when the last two are each other's nearest, they are merged. This gives the same merges as the greedy algorithm, but
// not in ascending order of height, so the tree is cut after all of them have been found.
//
// The matrix holds squared distances in double: squares save a square root per update, and double gives the same merges
// as scipy. It is compacted at each merge, so that every loop runs over contiguous numbers that are all in use.

#include <stdlib.h>

#include "common.h"

// Sums in any order, so that they are vectors.
#define ANY_ORDER _Pragma("clang fp reassociate(on) contract(fast)")
#define FUSED _Pragma("clang fp contract(fast)")

typedef struct {
    double height; // squared
    int64_t number;
    int64_t earlier; // first tokens of both clusters, the earlier one and the later one
    int64_t later;
} Merge;

// Memory for a document of `n` tokens; `distances` has rows of `n` numbers.
typedef struct {
    double *distances;
    double *sizes;
    int64_t *tokens; // first token of each cluster
    int64_t *chain;
    int64_t *labels;
    Merge *merges;
} Tree;

static Tree tree_in(char *scratch, int64_t n) {
    Tree tree;
    tree.distances = (double *)scratch;
    tree.sizes = tree.distances + n * n;
    tree.tokens = (int64_t *)(tree.sizes + n);
    tree.chain = tree.tokens + n;
    tree.labels = tree.chain + n;
    tree.merges = (Merge *)(tree.labels + n);
    return tree;
}

// Writes a squared cosine distance to both triangles; the distance is clipped to 0..2, and 0 for NaN.
INLINE void put_distance(double *distances, int64_t n, int64_t i, int64_t j, float similarity) {
    float distance = 1 - similarity;
    distance = distance > 0 ? distance : 0;
    distance = distance < 2 ? distance : 2;
    double square = (double)distance * distance;
    distances[n * i + j] = square;
    distances[n * j + i] = square;
}

// (1 - <row, row>) ** 2, infinity on the diagonal. Eight products at a time, of four rows with two, so that each load
// is used more than once. Rows past the end are replaced by the last row.
static void square_distances(const float *rows, int64_t n, int64_t dim, double *distances) {
    ANY_ORDER
    int64_t end = n - 1;
    for (int64_t i = 0; i < n; i += 4) {
        int64_t i1 = least_of(i + 1, end);
        int64_t i2 = least_of(i + 2, end);
        int64_t i3 = least_of(i + 3, end);
        const float *row = rows + dim * i;
        const float *row1 = rows + dim * i1;
        const float *row2 = rows + dim * i2;
        const float *row3 = rows + dim * i3;
        for (int64_t j = i; j < n; j += 2) {
            int64_t j1 = least_of(j + 1, end);
            const float *left = rows + dim * j;
            const float *right = rows + dim * j1;
            float a = 0, a1 = 0, a2 = 0, a3 = 0, b = 0, b1 = 0, b2 = 0, b3 = 0;
            for (int64_t k = 0; k < dim; k++) {
                a += row[k] * left[k];
                a1 += row1[k] * left[k];
                a2 += row2[k] * left[k];
                a3 += row3[k] * left[k];
                b += row[k] * right[k];
                b1 += row1[k] * right[k];
                b2 += row2[k] * right[k];
                b3 += row3[k] * right[k];
            }
            put_distance(distances, n, i, j, a);
            put_distance(distances, n, i1, j, a1);
            put_distance(distances, n, i2, j, a2);
            put_distance(distances, n, i3, j, a3);
            put_distance(distances, n, i, j1, b);
            put_distance(distances, n, i1, j1, b1);
            put_distance(distances, n, i2, j1, b2);
            put_distance(distances, n, i3, j1, b3);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        distances[n * i + i] = INFINITY;
    }
}

// Multiplies squared distances by 2 a b / (a + b): what it costs to merge clusters of the sizes a and b.
static void weigh_distances(double *distances, const double *sizes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            if (i != j) {
                distances[n * i + j] *= 2 * sizes[i] * sizes[j] / (sizes[i] + sizes[j]);
            }
        }
    }
}

// The first position of the minimum. Non-negative numbers have the same order as their bits read as integers, of which
// a minimum can be computed in vectors, though not with an early exit.
static int64_t nearest_cluster(const double *distances, int64_t active) {
    int64_t smallest = INT64_MAX;
    for (int64_t i = 0; i < active; i++) {
        int64_t key = LOAD(int64_t, distances + i);
        smallest = key < smallest ? key : smallest;
    }
    int64_t place = active;
    for (int64_t i = 0; i < active; i++) {
        int64_t here = LOAD(int64_t, distances + i) == smallest ? i : active;
        place = here < place ? here : place;
    }
    return place;
}

// Replaces the first of two clusters by their union: the Lance-Williams formula for Ward's method.
static void join_clusters(double *distances, double *sizes, int64_t n, int64_t kept, int64_t gone, int64_t active) {
    FUSED
    double *restrict row = distances + n * kept;
    const double *restrict other = distances + n * gone;
    double height = row[gone];
    double size_kept = sizes[kept];
    double size_gone = sizes[gone];
    for (int64_t i = 0; i < active; i++) {
        double size = sizes[i];
        double total = (size_kept + size) * row[i] + (size_gone + size) * other[i] - size * height;
        double distance = total / (size_kept + size_gone + size);
        // A union is never nearer than the nearer of its two clusters. The chain relies on it, so rounding is
        // corrected.
        double lowest = row[i] < other[i] ? row[i] : other[i];
        row[i] = distance > lowest ? distance : lowest;
    }
    row[kept] = INFINITY;
    sizes[kept] = size_kept + size_gone;
    for (int64_t i = 0; i < active; i++) {
        distances[n * i + kept] = row[i];
    }
}

// Merges until one cluster is left; distances and sizes are overwritten. Each token but 0 is the later one of exactly
// one merge.
static void merge_all(Tree tree, int64_t n) {
    double *distances = tree.distances;
    int64_t depth = 0;
    for (int64_t i = 0; i < n; i++) {
        tree.tokens[i] = i;
    }
    for (int64_t merge = 0; merge < n - 1; merge++) {
        int64_t active = n - merge;
        int64_t x;
        int64_t y;
        if (depth == 0) {
            tree.chain[0] = 0;
            depth = 1;
        }
        for (;;) {
            x = tree.chain[depth - 1];
            y = nearest_cluster(distances + n * x, active);
            // Among equally near clusters the previous one is taken, or the chain would never end.
            if (depth > 1 && distances[n * x + tree.chain[depth - 2]] <= distances[n * x + y]) {
                y = tree.chain[depth - 2];
                break;
            }
            tree.chain[depth] = y;
            depth++;
        }
        depth -= 2;
        int64_t kept = least_of(x, y);
        int64_t gone = most_of(x, y);
        int64_t first = least_of(tree.tokens[kept], tree.tokens[gone]);
        int64_t second = most_of(tree.tokens[kept], tree.tokens[gone]);
        tree.merges[merge] = (Merge){distances[n * kept + gone], merge, first, second};
        tree.tokens[kept] = first;
        join_clusters(distances, tree.sizes, n, kept, gone, active);
        // The last cluster moves to the row that has become free.
        int64_t last = active - 1;
        if (gone != last) {
            memcpy(distances + n * gone, distances + n * last, sizeof(double) * last);
            for (int64_t i = 0; i < last; i++) {
                distances[n * i + gone] = distances[n * last + i];
            }
            distances[n * gone + gone] = INFINITY;
            tree.sizes[gone] = tree.sizes[last];
            tree.tokens[gone] = tree.tokens[last];
            for (int64_t i = 0; i < depth; i++) {
                if (tree.chain[i] == last) {
                    tree.chain[i] = gone;
                }
            }
        }
    }
}

static int by_height(const void *left, const void *right) {
    const Merge *a = left;
    const Merge *b = right;
    if (a->height != b->height) {
        return a->height < b->height ? -1 : 1;
    }
    return a->number < b->number ? -1 : 1;
}

// The cluster of each token after the lowest merges, numbered in the order of their first tokens.
static void cut(Tree tree, int64_t n, int64_t clusters) {
    int64_t *parents = tree.tokens;
    for (int64_t i = 0; i < n; i++) {
        parents[i] = i;
    }
    qsort(tree.merges, n - 1, sizeof(Merge), by_height);
    for (int64_t merge = 0; merge < n - clusters; merge++) {
        parents[tree.merges[merge].later] = tree.merges[merge].earlier;
    }
    int64_t seen = 0;
    for (int64_t token = 0; token < n; token++) {
        if (parents[token] == token) {
            tree.labels[token] = seen++;
        } else {
            tree.labels[token] = tree.labels[parents[token]]; // the parent is an earlier token, labelled already
        }
    }
}

// `weights` are those of the rows, or NULL. Returns the labels, in `scratch`.
static const int64_t *cluster(const float *rows, int64_t n, int64_t dim, const float *weights, int64_t clusters,
                              char *scratch) {
    Tree tree = tree_in(scratch, n);
    square_distances(rows, n, dim, tree.distances);
    for (int64_t i = 0; i < n; i++) {
        tree.sizes[i] = weights ? weights[i] : 1;
    }
    if (weights) {
        weigh_distances(tree.distances, tree.sizes, n);
    }
    merge_all(tree, n);
    cut(tree, n, clusters);
    return tree.labels;
}

// Gives the sum of a cluster's rows the length 1; returns whether that length is a number.
static bool normalise_mean(float *mean, int64_t dim) {
    ANY_ORDER
    double square = 0;
    for (int64_t k = 0; k < dim; k++) {
        square += (double)mean[k] * mean[k];
    }
    if (!isfinite(square)) {
        return false;
    }
    if (square > 0) {
        float factor = (float)(1 / sqrt(square));
        for (int64_t k = 0; k < dim; k++) {
            mean[k] *= factor;
        }
    }
    return true;
}

// Writes the mean of each cluster; returns the first document with a mean of infinite or NaN length, or -1. `scratch`
// has room for the longest document: 8 * (n * n + 8 * n) bytes.
EXPORT int64_t JOINED(pool_documents, ISA)(const float *vectors, const int64_t *offsets, const int64_t *pooled_offsets,
                                           int64_t documents, int64_t dim, int64_t protected, float *pooled,
                                           char *scratch) {
    for (int64_t d = 0; d < documents; d++) {
        const float *rows = vectors + dim * (offsets[d] + protected);
        float *means = pooled + dim * (pooled_offsets[d] + protected);
        int64_t n = offsets[d + 1] - offsets[d] - protected;
        int64_t clusters = pooled_offsets[d + 1] - pooled_offsets[d] - protected;
        if (n <= 0) {
            continue;
        }
        const int64_t *labels = cluster(rows, n, dim, NULL, clusters, scratch);
        for (int64_t token = 0; token < n; token++) {
            for (int64_t k = 0; k < dim; k++) {
                means[dim * labels[token] + k] += rows[dim * token + k];
            }
        }
        for (int64_t c = 0; c < clusters; c++) {
            if (!normalise_mean(means + dim * c, dim)) {
                return d;
            }
        }
    }
    return -1;
}

// Writes the cluster of each token; `weights` may be NULL.
KERNEL(cluster_documents)(const float *vectors, const int64_t *offsets, const int64_t *clusters, const float *weights,
                          int64_t documents, int64_t dim, int64_t *labels, char *scratch) {
    for (int64_t d = 0; d < documents; d++) {
        int64_t first = offsets[d];
        int64_t n = offsets[d + 1] - first;
        if (n > 0) {
            const float *own = weights ? weights + first : NULL;
            const int64_t *found = cluster(vectors + dim * first, n, dim, own, clusters[d], scratch);
            memcpy(labels + first, found, sizeof(int64_t) * n);
        }
    }
}
