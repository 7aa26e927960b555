"""Which words matched? Runs cell by cell in an editor, or as a whole: `python examples/token_alignments.py`."""

# %% [markdown]
# # Which words matched?
#
# Late interaction scores a document by letting each token of the query choose the document token that is most
# similar to it. So every score can be read: here is the matrix of similarities behind one.

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
model = load()  # all-MiniLM-L6-v2, token vectors as they are

# %% [markdown]
# One vector per token, for the query and for each document.

# %%
query_vectors = model.encode_query(query)
document_vectors = model.encode_document(documents)
print(f"query: {tuple(query_vectors.shape)}, documents: {[tuple(d.shape) for d in document_vectors]}")

# %% [markdown]
# The matrix of similarities for the first document: query tokens down, document tokens across. MaxSim takes the
# largest number of each row (marked) and adds them up.

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
