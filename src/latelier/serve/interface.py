"""The page at ``/docs``: the REST interface as HTML, made from its OpenAPI document, without scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_HEAD = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Latelier: REST</title>
<link rel="icon" href="/page/icon.svg">
<link rel="stylesheet" href="/page/style.css">
<main class="interface">
"""


def interface_page(document: Mapping[str, Any], address: str) -> str:
    """Return the page of an OpenAPI document; `address`: of the server, for its examples."""
    schemas = document["components"]["schemas"]
    described = escape(f"{document['info']['summary']} Version {document['info']['version']}.")
    parts = [
        _HEAD,
        f'<h1>REST</h1>\n<p>{described} <a href="/openapi.json">openapi.json</a> has the same for programs.</p>',
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(method.upper(), path, operation, schemas, address))
    return "\n".join([*parts, "</main>\n</html>\n"])


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any], address: str) -> str:
    parts = [f"<section>\n<h2>{method} {escape(path)}</h2>\n<p>{escape(operation.get('description', ''))}</p>"]
    fields = [_row(each["name"], each["schema"], each, schemas) for each in operation.get("parameters", ())]
    example: dict[str, Any] = {}
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        properties = _resolved(body, schemas)
        required = properties.get("required", ())
        for name, field in properties.get("properties", {}).items():
            fields.append(_row(name, field, field, schemas))
            if name in required:
                example[name] = _example(name, field, schemas)
        if "query" in properties["properties"]:
            example["query"] = "a question"
    if fields:
        head = "<tr><th>name</th><th>value</th><th>meaning</th></tr>"
        parts.append(f"<table>{head}{''.join(fields)}</table>")
    call = f"curl -X {method} '{address}{path}'"
    if body is not None:
        call += f" \\\n    --json '{json.dumps(example)}'"
    return "\n".join([*parts, f"<pre>{escape(call)}</pre>\n</section>"])


def _row(name: str, schema: Mapping[str, Any], described: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    cells = [f"<code>{escape(name)}</code>", escape(_type(schema, schemas)), escape(described.get("description", ""))]
    if "default" in schema:
        cells[1] += f", by default <code>{escape(json.dumps(schema['default']))}</code>"
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:
        found: Mapping[str, Any] = schemas[schema["$ref"].rpartition("/")[2]]
        return found
    return schema


def _type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return what a value may be, in words."""
    schema = _resolved(schema, schemas)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each, schemas) for each in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(json.dumps(each) for each in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_type(schema['items'], schemas)}"
    if "properties" in schema:
        return f"object of {', '.join(schema['properties'])}"
    return str(schema.get("type", "any value"))


def _example(name: str, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """Return a value that an address accepts."""
    schema = _resolved(schema, schemas)
    if "anyOf" in schema:
        return _example(name, schema["anyOf"][0], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        return [_example(name.removesuffix("s"), schema["items"], schemas)]
    if schema.get("type") == "object":
        required = schema.get("required", ())
        return {each: _example(each, schema["properties"][each], schemas) for each in required}
    if schema.get("type") in ("integer", "number"):
        return 1
    return f"a {name}"
