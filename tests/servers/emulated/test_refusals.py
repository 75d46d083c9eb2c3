"""What emulated engines refuse, in the words of the real ones."""

from functools import partial
from typing import Any

import httpx
import pytest
from helpers import HANGS_S
from servers.emulated.callers import Prompts, eventually, is_gone, running


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"model": "nope"}, 404, "NotFoundError"),
        ({"prompt": [7] * 101}, 400, "maximum context length is 100 tokens"),
        ({"prompt": [7] * 100}, 400, "max_tokens must be at least 1"),
        ({"prompt": []}, 400, "at least one prompt"),
        ({"prompt": [[]]}, 400, "cannot be empty"),
        ({"prompt": [[5], []]}, 400, "cannot be empty"),
        ({"prompt": None}, 400, "must be provided"),
        ({"prompt": "hello"}, 400, "Tokenizer not available"),
        ({"prompt": [1.5]}, 400, "validation error"),
        ({"prompt": [-1, 5]}, 400, "greater than or equal to 0"),
        ({"cache_salt": ""}, 400, "cache_salt"),
        ({"cache_salt": 3}, 400, "cache_salt"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"max_tokens": 1.5}, 400, "validation error"),
        ({"temperature": -1}, 400, "temperature"),
        ({"n": 2, "temperature": 0}, 400, "greedy"),
        ({"n": 0}, 400, "n must be at least 1"),
        ({"stream": True}, 400, "does not stream"),
    ],
)
def test_vllm_refuses_in_openais_form_and_counts_nothing(fields: dict[str, Any], status: int, says: str) -> None:
    with running("vllm", max_model_tokens=100) as caller:
        reply = caller.http.post("/v1/completions", json={"prompt": [5, 6], "max_tokens": 1, **fields})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (status, status)
        assert error.keys() == {"message", "type", "param", "code"}
        assert says in f"{error['type']} {error['message']}"
        assert caller.counted() == (0, 0)


def test_vllm_cuts_the_output_to_what_the_models_length_leaves() -> None:
    with running("vllm", max_model_tokens=100) as caller:
        usage = caller.post([7] * 92, max_tokens=20).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (92, 8, 100)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"input_ids": []}, "cannot be empty"),
        ({}, "should be provided"),
        ({"text": "hello"}, "cannot accept text"),
        ({"input_ids": [7] * 995}, "Input length (995 tokens) exceeds the maximum allowed length (994 tokens)"),
        ({"input_ids": [7] * 2000}, "longer than the model's context length"),
        ({"input_ids": [7] * 900, "sampling_params": {"max_new_tokens": 1101}}, "exceeds the model's maximum context"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": -1}}, "at least 0"),
        ({"input_ids": [5], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [5], "stream": True}, "does not stream"),
        ({"input_ids": [[5]], "sampling_params": [{}, {}]}, "batch size"),
        ({"input_ids": [[5]], "cache_salt": ["a", "b"]}, "batch size"),
    ],
)
def test_sglang_refuses_with_a_message(body: dict[str, Any], says: str) -> None:
    with running("sglang", blocks=1000, max_model_tokens=2000) as caller:
        reply = caller.http.post("/generate", json=body)
        assert reply.status_code == 400
        assert says in reply.json()["error"]["message"]
        assert caller.counted() == (3, 0)


def test_sglang_cuts_the_output_to_what_the_pool_leaves() -> None:
    with running("sglang", blocks=1000, max_model_tokens=2000) as caller:
        assert len(caller.output([7] * 900, max_tokens=1000)) == 98
        assert len(caller.http.post("/generate", json={"input_ids": [7]}).json()["output_ids"]) == 128


def test_sglang_takes_lists_of_parameters_and_salts_and_no_new_tokens(prompts: Prompts) -> None:
    prompt = prompts.draw(100)
    with running("sglang") as caller:
        assert caller.post(prompt, max_tokens=0).json()["output_ids"] == []
        body = {
            "input_ids": [prompt, prompt],
            "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
            "cache_salt": [None, "b"],
        }
        replies = caller.http.post("/generate", json=body).json()
        assert [len(reply["output_ids"]) for reply in replies] == [1, 2]
        assert [reply["meta_info"]["cached_tokens"] for reply in replies] == [99, 0]
        assert caller.http.post("/generate", json={"input_ids": [5], "cache_salt": 3}).status_code == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/nosuch", "/reset_prefix_cache"])
def test_paths_and_methods_that_are_not_there(path: str) -> None:
    with running("vllm") as caller:
        reply = caller.http.get(path)
        expected = (404, "Not Found") if path == "/nosuch" else (405, "Method Not Allowed")
        assert (reply.status_code, reply.json()["detail"]) == expected


@pytest.mark.parametrize(
    ("name", "prompt"), [("vllm", [5, 32_000]), ("sglang", [5, 32_000]), ("sglang", [5, -6]), ("sglang", [[5], []])]
)
def test_a_token_that_the_model_does_not_have_kills_the_server(name: str, prompt: list[Any]) -> None:
    with running(name) as caller, httpx.Client(base_url=caller.server.base_url, timeout=HANGS_S) as other:
        other.get("/health").raise_for_status()
        if name == "vllm":
            assert caller.post(prompt).status_code == 500
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                caller.post(prompt)
        assert is_gone(caller.http)
        assert eventually(partial(is_gone, other))
