"""Fetches the JSON Schema test suite, whose schemas structured output is proved on.

It lies in the source distribution of jsonschema. `python -m tests.grammar.schema_suite` fetches it into
$OCTAVO_TEST_DATA (default: ~/.cache/octavo/test-data); a second run finds it there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tests.source_distribution import SourceDistribution

# Draft 3 is refused by its name, and the next draft is not finished.
DIALECTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# ECMA 262's classes are ASCII; the validator that answers are checked with has Python's, which are not.
_LEFT_OUT = "ecmascript-regex.json"


@dataclass(frozen=True, slots=True)
class SuiteSchema:
    """A schema of the suite, which names its dialect."""

    place: str
    dialect: str
    schema: dict[str, Any] | bool


def _place(path: PurePosixPath) -> PurePosixPath | None:
    wanted = path.parts[1:3] == ("json", "tests") and path.suffix == ".json"
    return PurePosixPath(*path.parts[3:]) if wanted else None


DATA = SourceDistribution(
    "jsonschema",
    "4.26.0",
    "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
    backend="hatchling.build",
    module="tests.grammar.schema_suite",
    place=_place,
)


def suite() -> list[SuiteSchema]:
    """All schemas, in a fixed order; skips the test if they are absent, fails it under OCTAVO_REQUIRE_WEIGHTS=1."""
    root = DATA.require()
    found = []
    for draft, dialect in DIALECTS.items():
        for path in sorted((root / draft).rglob("*.json")):
            if path.name == _LEFT_OUT:
                continue
            for case in json.loads(path.read_text(encoding="utf-8")):
                schema = case["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": dialect, **schema}
                found.append(SuiteSchema(f"{draft}/{path.stem}: {case['description']}", dialect, schema))
    return found


if __name__ == "__main__":
    print(DATA.fetch())
