"""The documents that the adapters search."""

RECORDS = [
    {"id": "fruit", "text": "Bananas and apples are healthy.", "year": 2019, "lang": "en", "score": 4.5},
    {"id": "moon", "text": "The moon is far away from the earth.", "year": 2021, "lang": "en", "id_": "m"},
    {"id": 7, "text": "Seven kings ruled Rome before the republic.", "year": 2023, "metadata": {"tags": ["old"]}},
    {"id": "pasta", "text": "Boil the spaghetti in salted water.", "year": 2024, "lang": "it"},
    {"id": "train", "text": "The night train from Vienna to Venice.", "year": 2024, "lang": "de"},
]
# A text of several passages: the query finds its end.
LONG = "The harbour was quiet that morning. " * 30 + "An octopus has three hearts and blue blood."
