"""Every script of examples/ as a person runs it: a process of its own, over tiny random models."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from octavo import LLM, SamplingParams
from tests.conftest import weights_path
from tests.server.server_process import octavo_serve
from tests.tiny_models import save_hf

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Example = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 16-bit weights, so that its answers do not depend on the batch."""
    path = tmp_path_factory.mktemp("examples") / "tiny"
    save_hf(path, "llama", num_hidden_layers=2, max_position_embeddings=4096, dtype=torch.bfloat16)
    return path


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    """Of a server whose model is told of tools by the server itself, for its template knows none."""
    with octavo_serve("-m", model, "--parallel", "2", "--tool-parser", "generic") as server:
        server.wait_until_ready()
        yield f"{server.url}/v1"


@pytest.fixture
def example(tmp_path: Path) -> Example:
    """`example("generate.py", "-m", model, "Hi")`: what the script prints. Runs in `tmp_path`.

    It has to succeed, or with `problem`, to end with status 1 and that on standard error.
    """

    def run(script: str, *arguments: object, stdin: str = "", problem: str | None = None) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, "OMP_NUM_THREADS": "1", "OCTAVO_THREADS": "1"},
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=120,
        )
        assert done.returncode == (0 if problem is None else 1), done.stderr
        assert "Traceback" not in done.stderr
        assert problem is None or done.stderr == f"{problem}\n"
        return done.stdout

    return run


def test_every_example_is_run_by_a_test_and_listed() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    source = Path(__file__).read_text(encoding="utf-8")
    assert scripts and all(f'example("{name}"' in source for name in scripts)
    assert set(re.findall(r"\((\w+\.py)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))) == scripts


def test_the_list_has_the_command_lines_of_every_script() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()
    for script in EXAMPLES.glob("*.py"):
        described = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
        lines = re.findall(r"^ *(python examples/.*|octavo serve .*)$", described, re.MULTILINE)
        assert any(script.name in line for line in lines), script.name
        assert set(lines) <= set(listed), script.name


def test_prompts_are_completed_offline_in_their_order(example: Example, model: Path) -> None:
    printed = example("generate.py", "-m", model, "-n", 8, "The first", "The second")
    params = SamplingParams(max_tokens=8, temperature=0.7, seed=1)
    outputs = LLM(model, threads=1).generate(["The first", "The second"], params)
    texts = [output.outputs[0].text for output in outputs]
    assert printed.index(f"The first{texts[0]}\n") < printed.index(f"The second{texts[1]}\n")


def test_a_chat_is_streamed_turn_by_turn(example: Example, url: str) -> None:
    printed = example("streaming_chat.py", "--url", url, "-n", 6, "--temperature", 0, stdin="Hello\nAnd then?\n")
    assert len(re.findall(r"^  \[[1-6] tokens\]$", printed, re.MULTILINE)) == 2
    assert len(printed.replace("\n", "")) > 2 * len("  [6 tokens]")  # something was said, too


def test_an_answer_has_the_form_of_the_schema(example: Example, model: Path) -> None:
    fields = dict(
        line.split(": ", 1) for line in example("structured_output.py", "-m", model, "Where?").splitlines()[-3:]
    )
    assert set(fields) == {"city", "continent", "has_harbour"}
    assert fields["has_harbour"] in ("True", "False")


def test_calls_are_run_and_their_results_sent_back(example: Example, url: str) -> None:
    printed = example("tool_loop.py", "--url", url, "-n", 120, "Is it warm?")
    call = re.search(r"^get_temperature\((.*)\) -> (19|24) degrees$", printed, re.MULTILINE)
    assert call is not None
    assert json.loads(call[1])["city"] == {"19": "Bonn", "24": "Porto"}[call[2]]
    assert len(printed.splitlines()) > 1  # and went on from there


SAID_NOTHING = "no answer: the model said nothing (it ended by 'stop'); try a larger model"
CALL = {"name": "get_temperature", "arguments": '{"city": "Bonn"}'}


@pytest.mark.parametrize(
    ("message", "num_calls", "problem"),
    [
        (
            {"tool_calls": [{"id": "a", "type": "function", "function": CALL}]},
            4,
            "no answer: the model called a function in each of 4 turns; try a larger model",
        ),
        ({"content": ""}, 0, SAID_NOTHING),
    ],
    ids=["always calls", "says nothing"],
)
def test_a_model_that_never_answers_is_told_with_a_status(
    example: Example, message: dict[str, object], num_calls: int, problem: str
) -> None:
    with always_saying({"role": "assistant", **message}) as url:
        printed = example("tool_loop.py", "--url", url, "Is it warm?", problem=problem)
    assert printed == 'get_temperature({"city": "Bonn"}) -> 19 degrees\n' * num_calls


@contextmanager
def always_saying(message: dict[str, object]) -> Iterator[str]:
    """The URL of an endpoint whose model gives one and the same answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"object": "list", "data": [{"id": "stubborn", "object": "model"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        def answer(self, body: dict[str, object]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def test_the_line_that_is_the_query_is_found_first(example: Example, url: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("boats in the harbour\n\nprices fell\n a measured number \n", encoding="utf-8")
    printed = example("embeddings_search.py", "prices fell", "lines.txt", "--url", url, "--top", 2).splitlines()
    assert printed[0] == "1.000  prices fell"
    assert len(printed) == 2 and float(printed[1].split()[0]) < 1


def test_a_file_of_questions_is_answered_once(example: Example, model: Path, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("What is new?\nAnd what is old?\n", encoding="utf-8")
    first = example("batch_file.py", "questions.txt", "work", "-m", model, "-n", 5)
    assert [line for line in first.splitlines() if line.startswith("Q: ")] == ["Q: What is new?", "Q: And what is old?"]
    assert first.count("A: ") >= 2
    written = (tmp_path / "work" / "answers.jsonl").read_bytes()
    assert example("batch_file.py", "questions.txt", "work", "-m", model, "-n", 5) == first
    assert (tmp_path / "work" / "answers.jsonl").read_bytes() == written


def test_a_shared_document_is_computed_once(example: Example, url: str, tmp_path: Path) -> None:
    (tmp_path / "document.txt").write_text("A careful engineer measures twice. " * 20, encoding="utf-8")
    printed = example("prefix_sharing.py", "document.txt", "Who?", "How often?", "--url", url, "-n", 2)
    counts = re.findall(r"\[(\d+) of (\d+) prompt tokens cached\]", printed)
    (first, _), (second, whole) = ((int(cached), int(prompt)) for cached, prompt in counts)
    assert first == 0
    assert second % 16 == 0 and whole - 48 < second < whole


def test_a_conversation_goes_on_from_its_snapshot_with_the_same_answer(
    example: Example, model: Path, tmp_path: Path
) -> None:
    begun = example("save_conversation.py", "talk", "Say something.", "-m", model, "-n", 12)
    assert "[0 of " in begun
    restored = example("save_conversation.py", "talk", "And more?", "-m", model, "-n", 12)
    cached, prompt = map(int, re.findall(r"\[(\d+) of (\d+) prompt tokens restored\]", restored)[0])
    assert 0.5 * prompt < cached < prompt
    messages = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    again = LLM(model, threads=1).chat(messages[:3], SamplingParams(max_tokens=12))[0].outputs[0].text
    assert messages[3]["content"] == again


@pytest.mark.weights
@pytest.mark.nightly
def test_a_real_model_calls_the_function_that_the_question_needs(example: Example) -> None:
    with octavo_serve("-m", weights_path("qwen05"), "--parallel", "1") as server:
        server.wait_until_ready()
        url = f"{server.url}/v1"
        printed = example("tool_loop.py", "--url", url, "-n", 40, "How warm is it in Bonn?", problem=SAID_NOTHING)
    assert printed.splitlines()[0] == 'get_temperature({"city": "Bonn"}) -> 19 degrees'
