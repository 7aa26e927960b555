// What the parts of the page share: its elements, the indexes of the server, and how to search again.

export const at = (id) => document.getElementById(id);

export const server = { indexes: [] };

export const current = () => server.indexes.find((index) => index.name === at("index").value);

// Searches again after a moment, as typing does; other changes may come.
export const searchSoon = () => at("form").dispatchEvent(new Event("input"));

// Searches now.
export const searchNow = () => at("form").requestSubmit();
