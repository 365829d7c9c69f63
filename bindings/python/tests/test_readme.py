"""The README's examples are run as they stand, but for the broker's address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SOON

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def heading(example: str) -> str:
    before = README[: README.index(example)]
    return before.rsplit("\n## ", 1)[-1].split("\n")[0]


# What an example needs to be served, after it.
SERVED = {
    "fastapi": """
from fastapi.testclient import TestClient

with TestClient(app) as client:
    answer = client.post("/orders/42/pay")
    assert answer.status_code == 200 and int(answer.json()["token"]) > 0
""",
    "django": """
from django.test import RequestFactory
from saro_ticketing import Dialect, fence_table

connection.cursor().execute(fence_table(Dialect.SQLITE))
assert b"token" in pay(RequestFactory().post("/"), "42").content
""",
}
SET_UP = {
    "django": """
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(DATABASES={"default": database})
""",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=heading)
def test_an_example_runs(example: str, addr: str, tmp_path: Path) -> None:
    for needed in ("fastapi", "django"):
        if f"from {needed}" in example:
            pytest.importorskip(needed)
    before = "".join(code for word, code in SET_UP.items() if word in example)
    after = "".join(code for word, code in SERVED.items() if word in example)
    script = tmp_path / "example.py"
    script.write_text(before + example.replace("127.0.0.1:5225", addr) + after)
    command = [sys.executable, str(script)]
    if "def test_" in example:
        command[1:1] = ["-m", "pytest", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * SOON)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_readme_names_every_error() -> None:
    import saro_ticketing

    errors = [name for name in saro_ticketing.__all__ if name.endswith("Error")]
    assert [name for name in errors if f"`{name}`" not in README] == []
