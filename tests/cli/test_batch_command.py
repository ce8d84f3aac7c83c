"""`octavo batch` over a tiny model: answers that equal those of the engine, kills, and what is refused."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest

from octavo import LLM, SamplingParams
from tests.cli.conftest import start


def lines(prompts, **body):
    return "".join(
        json.dumps({"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": {"prompt": each, **body}})
        + "\n"
        for n, each in enumerate(prompts)
    )


@pytest.fixture
def requests(tmp_path):
    """`requests(text)`: a file of it."""

    def write(text):
        path = tmp_path / "in.jsonl"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_answers_are_those_of_the_engine_and_a_second_run_asks_nothing_again(octavo, model, requests, tmp_path):
    prompts, out = ["The harbour", "A lamp", "x"], tmp_path / "out.jsonl"
    source = requests(lines(prompts, max_tokens=8, temperature=0.7, seed=5) + "nonsense\n")
    done = octavo("batch", source, out, "-m", model)
    assert done.status == 0 and done.out == "", done.err
    assert done.err == f"octavo: 3 answered, 1 failed: {out}\n"
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    params = SamplingParams(max_tokens=8, temperature=0.7, seed=5)
    outputs = LLM(model, threads=1, max_num_seqs=1).generate(prompts, params)
    texts = [answer["response"]["body"]["choices"][0]["text"] for answer in answers[:3]]
    assert texts == [output.outputs[0].text for output in outputs]
    assert [answer["custom_id"] for answer in answers] == ["r0", "r1", "r2", None]
    before = out.read_bytes()
    assert (
        octavo("batch", source, out, "-m", model).err == f"octavo: 0 answered, 0 failed, 4 were there already: {out}\n"
    )
    assert out.read_bytes() == before


def test_a_batch_with_nothing_left_to_do_needs_no_model_and_no_torch(requests, tmp_path):
    out, poison = tmp_path / "out.jsonl", tmp_path / "poison"
    source = requests(lines(["a", "b"]) + "nonsense\n")
    answer = {"id": "x", "response": {"status_code": 200, "request_id": "r", "body": {}}, "error": None}
    bad = {"id": "x", "custom_id": None, "response": None, "error": {"code": "c", "message": "m", "line": 3}}
    answers = [{**answer, "custom_id": "r0"}, {**answer, "custom_id": "r1"}, bad]
    out.write_text("".join(json.dumps(each) + "\n" for each in answers), encoding="utf-8")
    for module in ("torch", "fastapi"):
        (poison / module).mkdir(parents=True)
        (poison / module / "__init__.py").write_text(f"raise AssertionError('{module} is imported')\n")
    with start("batch", source, out, "-m", tmp_path / "no-such-model", PYTHONPATH=str(poison)) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert err.decode() == f"octavo: 0 answered, 0 failed, 3 were there already: {out}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_a_batch_that_was_killed_goes_on_where_it_was(octavo, model, requests, tmp_path, how):
    out = tmp_path / "out.jsonl"
    source = requests(lines(["The harbour"] * 12, max_tokens=240, ignore_eos=True, temperature=0))
    with start("batch", source, out, "-m", model, "--parallel", "1") as process:
        deadline = time.monotonic() + 60
        while not out.exists() or out.read_bytes().count(b"\n") < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(how)
        _, err = process.communicate(timeout=30)
    assert process.returncode == (-how if how == signal.SIGKILL else 128 + how), err
    left = out.read_bytes()
    done = left.count(b"\n")
    assert 3 <= done < 12
    out.write_bytes(left + b'{"id": "batch_req_')  # as if it had been writing
    resumed = octavo("batch", source, out, "-m", model)
    assert f"{12 - done} answered, 0 failed, {done} were there already" in resumed.err
    assert out.read_bytes().startswith(left)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"r{n}" for n in range(12)]
    assert len({answer["response"]["body"]["choices"][0]["text"] for answer in answers}) == 1


def test_what_cannot_be_is_one_line_and_status_2(octavo, loads_nothing, requests, tmp_path):
    source = requests(lines(["x"]))
    done = octavo("batch", tmp_path / "nowhere", tmp_path / "out")
    assert done.status == 2 and "nowhere' cannot be read (No such file or directory)" in done.error
    done = octavo("batch", source, source)
    assert done.status == 2 and "is given for requests and for answers; name two files" in done.error
    done = octavo("batch", source, tmp_path / "out", "--parallel", "0")
    assert done.status == 2 and "--parallel is 0; it must be at least 1" in done.error
