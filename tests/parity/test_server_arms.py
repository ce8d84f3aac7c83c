"""The server arms of `octavo parity`: a real server agrees under other traffic, and every difference is noticed."""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from octavo.config import EngineConfig
from octavo.engine.loaded_model import load_model, plan_model
from octavo.errors import EngineFault
from octavo.parity import run_parity
from octavo.parity.server_arm import ask_server
from octavo.parity.server_process import ServedProcess
from octavo.parity.server_questions import ask_alone
from octavo.parity.trace import compare
from octavo.step_batch import StorageKind
from tests.conftest import weights_path
from tests.paged_routes import PAGED_ROUTES
from tests.tiny_models import save_hf

CONFIG = EngineConfig(dtype="bfloat16", device="cpu", threads=1)
SHORT = replace(CONFIG, max_context=128)
GEMMA = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,  # tied, random weights say the same token again and again
}
BOTH = ["server_dense", "server_paged"]
PROMPTS = ["The harbour was quiet when", "def add(left, right):"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """One windowed and one full layer of a tiny Gemma."""
    path = tmp_path_factory.mktemp("models") / "gemma"
    save_hf(path, "gemma3", **GEMMA)
    return load_model(plan_model(path, CONFIG), CONFIG)


@pytest.fixture(scope="module")
def questions(loaded):
    return ask_alone(loaded, SHORT, PROMPTS, 16, sampled=True)


def test_servers_of_either_storage_give_every_bit_that_an_engine_alone_gives(loaded):
    report = run_parity(loaded, CONFIG, num_tokens=32, arms=BOTH)
    assert report.equal and report.contract == "bitwise"
    dense, paged = report.arms
    assert (dense.problem, dense.first_divergence, dense.max_logit_diff) == (None, None, 0.0)
    assert (paged.problem, paged.first_divergence, paged.max_logit_diff) == (None, None, 0.0)
    assert set(dense.routes) == {"dense", "ring"}
    assert set(paged.routes) == PAGED_ROUTES


@pytest.mark.weights
@pytest.mark.parametrize(
    ("alias", "arms", "num_tokens"),
    [
        ("smollm2", ["server_paged"], 8),
        *(pytest.param(alias, BOTH, 24, marks=pytest.mark.nightly) for alias in ("smollm2", "gemma3", "qwen05")),
    ],
)
def test_servers_of_real_models_give_every_bit_that_an_engine_alone_gives(alias, arms, num_tokens):
    model = load_model(plan_model(weights_path(alias), CONFIG), CONFIG)
    report = run_parity(model, CONFIG, num_tokens=num_tokens, arms=arms)
    assert report.equal and report.contract == "bitwise"
    assert {arm.name: arm.max_logit_diff for arm in report.arms} == dict.fromkeys(arms, 0.0)


def test_a_server_that_answers_something_else_is_noticed(loaded, questions):
    """It is asked for another seed than the engine alone was."""
    changed = [
        replace(each, params=replace(each.params, seed=5)) if "seeded, streamed" in each.name else each
        for each in questions
    ]
    served = ask_server(loaded.plan, SHORT, StorageKind.PAGED, changed, PROMPTS)
    assert served.problem is None
    for question, answer in zip(questions, served.answers, strict=True):
        trace = question.trace(answer, served.routes, bitwise=True)
        found = compare(trace, question.reference(), bitwise=True, margin=0.25)
        assert found.agrees == ("seeded, streamed" not in question.name)


def test_every_prompt_is_asked_greedy_and_seeded_streamed_and_whole(questions):
    assert [name.partition(", ")[2] for name in (each.name for each in questions)] == [
        "greedy, whole",
        "greedy, streamed",
        "seeded, whole",
        "seeded, streamed",
    ] * len(PROMPTS)
    bodies = [each.body() for each in questions]
    assert [(body["temperature"] > 0, body["stream"]) for body in bodies[:4]] == [
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    ]
    assert questions[0].token_ids != questions[2].token_ids


def test_a_model_that_cannot_be_served_is_a_problem_of_the_arm(loaded, questions):
    config = replace(SHORT, kv_budget=1)
    served = ask_server(loaded.plan, config, StorageKind.PAGED, questions, PROMPTS)
    assert served.answers == []
    assert served.problem is not None and served.problem.startswith("octavo serve ended with status 2: ")


# -- what is compared ---------------------------------------------------------------------------------------------


def judged(question, change, *, bitwise=True):
    """(agrees, problem) of the expected answer after `change`."""
    answer = deepcopy(question.expected)
    change(answer)
    trace = question.trace(answer, {"dense": 1}, bitwise=bitwise)
    return compare(trace, question.reference(), bitwise=bitwise, margin=1e-3).agrees, trace.problem


def test_the_expected_answer_agrees(questions):
    for question in questions:
        assert judged(question, lambda answer: None) == (True, None)


def other_token(answer):
    answer.logprobs["tokens"][3] = "never said"


def other_alternative(answer):
    top = answer.logprobs["top_logprobs"][3]
    name = min(top, key=top.__getitem__)
    top["never said"] = top.pop(name)


def last_bit(answer):
    top = answer.logprobs["top_logprobs"][3]
    name = min(top, key=top.__getitem__)
    value = torch.tensor(top[name], dtype=torch.float32)
    top[name] = float(torch.nextafter(value, torch.tensor(0.0)))


@pytest.mark.parametrize("change", [other_token, other_alternative, last_bit])
def test_another_token_alternative_or_last_bit_of_a_log_probability_does_not_agree(questions, change):
    agrees, _ = judged(questions[0], change)
    assert not agrees
    assert judged(questions[0], change, bitwise=False)[0] == (change is not other_token)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda answer: setattr(answer, "text", answer.text + "."), "another text"),
        (lambda answer: setattr(answer, "finish_reason", "stop"), "another finish reason"),
        (lambda answer: setattr(answer, "prompt_tokens", 1), "counted 1 tokens in the prompt"),
        (lambda answer: setattr(answer, "prompt_tokens", None), "counted None tokens"),
        (lambda answer: setattr(answer, "problem", "was answered 500"), "was answered 500"),
        (lambda answer: answer.logprobs["token_logprobs"].__setitem__(0, -1.0), "other log-probabilities"),
        (lambda answer: answer.logprobs["text_offset"].__setitem__(1, 99), "other log-probabilities"),
    ],
    ids=["text", "reason", "prompt", "usage", "error", "logprob", "offset"],
)
def test_what_is_wrong_beside_the_tokens_is_a_problem(questions, change, problem):
    found = judged(questions[0], change)[1]
    assert found is not None and problem in found


def test_an_answer_that_ends_early_does_not_agree(questions):
    def cut(answer):
        for values in answer.logprobs.values():
            del values[10:]

    assert not judged(questions[0], cut)[0]
    assert not judged(questions[0], cut, bitwise=False)[0]


# -- the process --------------------------------------------------------------------------------------------------

FAKE = """
import http.server, json, signal, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "ready"}).encode())
    def log_message(self, *arguments):
        pass
signal.signal(signal.SIGTERM, lambda *arguments: sys.exit(STATUS))
server = http.server.HTTPServer(("127.0.0.1", 0), Ready)
print(f"listening on http://127.0.0.1:{server.server_port}, loading the model", file=sys.stderr, flush=True)
server.serve_forever()
"""


def fake(status: int) -> ServedProcess:
    return ServedProcess([sys.executable, "-c", FAKE.replace("STATUS", str(status))])


def test_a_server_is_ready_when_entered_and_gone_when_left():
    with fake(0) as server:
        process = server._process
        assert server.url.startswith("http://127.0.0.1:")
        assert process.poll() is None
    assert process.returncode == 0


def test_a_server_that_does_not_end_well_is_told_of(capfd):
    with pytest.raises(EngineFault, match="octavo serve ended with status 3: "), fake(3):
        pass
    with pytest.raises(ZeroDivisionError), fake(3):  # what went wrong first is what is told
        raise ZeroDivisionError
    assert capfd.readouterr().err == ""


def test_a_server_that_was_killed_is_told_of():
    server = fake(0).__enter__()
    server._process.kill()
    server._process.wait()
    with pytest.raises(EngineFault, match="octavo serve ended with status -9"):
        server.__exit__(None, None, None)


def test_a_server_that_ends_before_it_is_ready_is_told_of_with_its_last_words():
    script = "import sys; sys.exit('first\\nno such model')"
    with pytest.raises(EngineFault, match=r"octavo serve ended with status 1: no such model$"):
        ServedProcess([sys.executable, "-c", script]).__enter__()
