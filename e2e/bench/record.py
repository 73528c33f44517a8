"""The behaviour record: what is decided about every case file, random gangs and pod templates, as data without wording.

`python -m e2e.bench.record OUT.json` writes it and prints how many records each section has and the sha256 of the file.
Two versions of the source decide the same exactly when their files are the same bytes: no time, no chance, no ids.

`cases`: every document of tests/cases but C124, which is about the length of a text. The stories of
tests/admission/test_cases_lives.py and test_cases_webhook.py need a live controller or server, have no file and are
left out. `gangs`: plans of 500 random gangs (e2e.bench.record_gangs). `templates`: the webhook's patch, the recognition
and the findings of `isochrone admit` for every pod template of the tests, and for the public manifests where
ISOCHRONE_DATA (or ../shared/data) has them: compare files that were made with the same data only.

Values of annotations that are sentences for people are left out of the patches; of warnings there is the count.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from e2e.bench.record_cases import case_records
from e2e.bench.record_gangs import gang_records
from e2e.bench.record_pods import template_records
from e2e.bench.record_values import Data


def record() -> dict[str, dict[str, Data]]:
    """Every record by section and name."""
    return {"cases": case_records(), "gangs": gang_records(), "templates": template_records()}


def main(out: Annotated[Path, typer.Argument(help="Where the record is written, as JSON.")]) -> None:
    """Write the behaviour record, which is equal before and after a change that changes no behaviour."""
    found = record()
    text = json.dumps(found, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    for section, records in found.items():
        sys.stdout.write(f"{section}: {len(records)} records\n")
    sys.stdout.write(f"sha256 {hashlib.sha256(text.encode()).hexdigest()}\n")


if __name__ == "__main__":
    typer.run(main)
