// All kernels in one piece, compiled once for each instruction set: it takes half the time of one file after the other.

#include "float_maxsim.c"
#include "int8_maxsim.c"
#include "ivf_candidates.c"
#include "ivf_centroids.c"
#include "ivf_codes.c"
#include "ivf_rerank.c"
#include "ivf_signs.c"
#include "postings.c"
#include "ward.c"
