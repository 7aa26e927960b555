"""Which words matched? Runs cell by cell in an editor, or as a whole: `python examples/token_alignments.py`."""

# %% [markdown]
# # Which words matched?
#
# Late interaction matches each query token with the most similar document token, and adds up these similarities.
# This script prints the matrix of similarities of one query and one document.

# %%
import numpy as np

from latelier.models import load
from latelier.scores import colbert_scores

query = "cheap way to fly"
documents = [
    "Low-cost airlines offer inexpensive tickets.",
    "Expensive tickets for the opera.",
    "How birds fly south in winter.",
]
model = load()  # all-MiniLM-L6-v2 without further training

# %% [markdown]
# One vector per token, for the query and for each document.

# %%
query_vectors = model.encode_query(query)
document_vectors = model.encode_document(documents)
print(f"query: {tuple(query_vectors.shape)}, documents: {[tuple(d.shape) for d in document_vectors]}")

# %% [markdown]
# The similarities for the first document: rows are query tokens, columns document tokens. MaxSim is the sum of the
# largest number in each row (marked with *).

# %%
rows, columns = model.tokens(query), model.tokens(documents[0], is_query=False)
similarities = (query_vectors @ document_vectors[0].T).cpu().numpy()
print(" " * 8 + "".join(f"{token[:8]:>9}" for token in columns))
for token, values in zip(rows, similarities, strict=True):
    marks = ["*" if value == values.max() else " " for value in values]
    print(f"{token:8}" + "".join(f"{value:8.2f}{mark}" for value, mark in zip(values, marks, strict=True)))
print(f"sum of the largest: {similarities.max(axis=1).sum():.3f}")

# %% [markdown]
# The same for all documents at once, best first.

# %%
scores = colbert_scores([query_vectors], document_vectors)[0].numpy()
for i in np.argsort(-scores):
    print(f"{scores[i]:6.3f}  {documents[i]}")
