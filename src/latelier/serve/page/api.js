// Requests to the server. A failed one throws an Error with the server's own message.

let token = sessionStorage.getItem("token") ?? "";

export function setToken(value) {
  token = value;
  sessionStorage.setItem("token", value);
}

export const hasToken = () => token !== "";

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// A browser that does not tell how a number was spelled rounds integers beyond 2^53.
export const keepsIntegers = "rawJSON" in JSON;

// Integers beyond 2^53 are no numbers of JavaScript: they become BigInts, and ids their digits, which the server takes
// as well.
const parsed = (json) =>
  JSON.parse(json, (key, value, context) => {
    const isRounded = Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source);
    if (!isRounded) return value;
    return key === "id" ? context.source : BigInt(context.source);
  });

// As JSON.stringify, but all digits of integers of 64 bits are kept; the server takes larger ones only as floats, with
// an exponent, and so it stores them.
function spelled(value) {
  if (typeof value === "bigint" && BigInt.asIntN(64, value) === value) return String(value);
  const isLarge = Number.isInteger(value) && !Number.isSafeInteger(value);
  // Beyond all floats, it is equal to nothing that is stored, as null is.
  if (typeof value === "bigint" || isLarge) return Number.isFinite(Number(value)) ? Number(value).toExponential() : "null";
  if (Array.isArray(value)) return `[${value.map(spelled)}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, part]) => `${JSON.stringify(key)}:${spelled(part)}`)}}`;
}

async function request(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (token) headers.authorization = `Bearer ${token}`;
  const options = body === undefined ? { headers, signal } : { method: "POST", headers, body: spelled(body), signal };
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

async function fetched(path) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { headers });
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new RequestError(response.status, answer.error?.message ?? response.statusText);
}

// A picture of a document, or of a page of its file, as pixels: the policy of the page allows no image of another
// address than its own, and an <img> sends no token.
export async function picture(index, id, size, page) {
  const asked = new URLSearchParams(page ? { size, page } : { size });
  const response = await fetched(address(index, `pictures/${encodeURIComponent(id)}?${asked}`));
  return createImageBitmap(await response.blob());
}

export const fileAddress = (index, id) => address(index, `files/${encodeURIComponent(id)}`);

// The file of a document, for a link: a link sends no token.
export async function fileObject(index, id) {
  const response = await fetched(fileAddress(index, id));
  const blob = await response.blob();
  // Here it would be a page of this server's origin.
  return URL.createObjectURL(blob.type.startsWith("text/html") ? new Blob([blob], { type: "text/plain" }) : blob);
}

const address = (index, action) => `v1/indexes/${encodeURIComponent(index)}/${action}`;

export const describe = (index) => request(`v1/indexes/${encodeURIComponent(index)}`);
export const read = (index, id, signal) => request(address(index, `documents/${encodeURIComponent(id)}`), undefined, signal);
export const describeFields = (index, asked = {}) => request(address(index, `fields?${new URLSearchParams(asked)}`));
export const browse = (index, asked) => request(address(index, "browse"), asked);
export const findIds = (index, text) => request(address(index, `ids?contains=${encodeURIComponent(text)}`));
export const listIndexes = () => request("v1/indexes");
export const search = (index, body, signal) => request(address(index, "search"), body, signal);
export const explain = (index, body, signal) => request(address(index, "explain"), body, signal);
export const whyNot = (index, body) => request(address(index, "why-not"), body);
