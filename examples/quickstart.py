"""Index a few documents and search them, offline, with no training: `python examples/quickstart.py`."""

from latelier.retrieve import Retriever

documents = [
    {"id": "pasta", "text": "Boil the pasta in salted water until it is firm to the bite.", "course": "main"},
    {"id": "tart", "text": "Bake the apple tart for forty minutes, until its crust is golden.", "course": "dessert"},
    {"id": "bread", "text": "Let the dough rest overnight, then bake the loaf in a hot oven.", "course": "side"},
    {"id": "soup", "text": "Simmer leeks and potatoes, then blend them with a little cream.", "course": "starter"},
]


def main() -> None:
    # all-MiniLM-L6-v2 as a late-interaction model, and an exact index in memory. Retriever(index="recipes") keeps the
    # index on disk.
    retriever = Retriever()
    retriever.add(documents, show_progress=True)

    for question in ("how long does an apple cake stay in the oven?", "vegetables with cream"):
        print(f"\n{question}")
        for result in retriever.search(question, k=2):
            print(f"  {result.score:6.2f}  {result.id:6}  {result.text}")

    print("\nno desserts:")
    for result in retriever.search("baked in the oven", k=1, filter="course <> ?", parameters=("dessert",)):
        print(f"  {result.score:6.2f}  {result.id:6}  {result.text}")

    print("\nthe score of the first result, by word:")
    print(retriever.explain("how long does an apple cake stay in the oven?", "tart"))


if __name__ == "__main__":
    main()
