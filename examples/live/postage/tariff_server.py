"""An MCP server over stdio, one JSON-RPC message a line, with one tool: what a country's letters cost."""

from __future__ import annotations

import json
import sys
from typing import Any

RATES = {"IS": "2.50", "NO": "3.75"}
COUNTRY = {"type": "string", "description": "Two letters, such as NO."}
TOOL = {
    "name": "rate",
    "description": "The official rate of letters to a country, for each 100 grams.",
    "inputSchema": {"type": "object", "properties": {"country": COUNTRY}, "required": ["country"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """None: there is no such method here."""
    if method == "initialize":
        served = {"name": "tariff", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": served}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        country = params["arguments"]["country"]
        known = country in RATES
        text = f"RATE-{country}-{RATES[country]}" if known else f"no rate for {country}; there are: {', '.join(RATES)}"
        return {"content": [{"type": "text", "text": text}], "isError": not known}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params", {}))
        missing = {"code": -32601, "message": f"there is no method {request['method']}"}
        said = {"error": missing} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}), flush=True)


if __name__ == "__main__":
    main()
