"""The HTTP API: the data of the pages as JSON, and its description."""

from __future__ import annotations

import json

from jobmill.dashboard.acts import ACTS
from jobmill.dashboard.screens import SCREENS
from tests.dashboard.visitor import Visitor


async def test_the_description_names_every_page_and_every_act(visitor: Visitor) -> None:
    answer = await visitor.get("/openapi.json")
    assert answer.status == 200
    paths = answer.json["paths"]
    assert len(paths) == len(SCREENS) + len(ACTS)
    assert paths["/jobs/{id}"]["get"]["parameters"] == [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    for path in paths.values():
        for operation in path.values():
            assert operation["summary"], path
            assert "None" not in operation.get("description", ""), path
    named = set(answer.json["components"]["schemas"])
    used = {part.split('"')[0] for part in json.dumps(answer.json).split("#/components/schemas/")[1:]}
    assert used <= named


async def test_an_act_answers_a_program_with_what_it_did(visitor: Visitor) -> None:
    body = json.dumps({"queue": "mail", "note": "api down"}).encode()
    headers = {"content-type": "application/json", "accept": "application/json"}
    answer = await visitor.send("POST", "/acts/pause", body, headers)
    assert (answer.status, answer.json["level"], answer.json["count"]) == (200, "succeeded", 1)
    answer = await visitor.send("POST", "/acts/pause", b'{"queue": ""}', headers)
    assert (answer.status, "queue" in answer.json["text"]) == (400, True)
    answer = await visitor.send("POST", "/acts/pause", b"[1]", headers)
    assert (answer.status, answer.json["title"]) == (400, "This cannot be read")
    assert (await visitor.send("POST", "/acts/none", b"{}", headers)).status == 404
