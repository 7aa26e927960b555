// Requests to the server. A failed one throws an Error with the server's own message.

let token = sessionStorage.getItem("token") ?? "";

export function setToken(value) {
  token = value;
  sessionStorage.setItem("token", value);
}

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Integers beyond 2^53 are no numbers of JavaScript: such an id becomes its digits, which the server takes as well.
// A browser that does not tell how a number was spelled rounds it.
const parsed = (json) =>
  JSON.parse(json, (key, value, context) => {
    const isRounded = key === "id" && Number.isInteger(value) && !Number.isSafeInteger(value);
    return isRounded ? (context?.source ?? value) : value;
  });

async function request(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const options = body === undefined ? { headers, signal } : { method: "POST", headers, body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "The server cannot be reached; is it still running?");
  }
  const answer = await response.text().then(parsed).catch(() => ({}));
  if (!response.ok) throw new RequestError(response.status, answer.error?.message ?? response.statusText);
  return answer;
}

const address = (index, action) => `/v1/indexes/${encodeURIComponent(index)}/${action}`;

export const listIndexes = () => request("/v1/indexes");
export const search = (index, body, signal) => request(address(index, "search"), body, signal);
export const explain = (index, body, signal) => request(address(index, "explain"), body, signal);
export const whyNot = (index, body) => request(address(index, "why-not"), body);
