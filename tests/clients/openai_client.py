"""openai-python: models, completions and chats, whole and streamed, at once, refused and given up."""
import asyncio

import openai
from common import HTTP, MODEL, REFERENCE, Watch, check, check_close, check_equal

client = openai.OpenAI(base_url=f"{HTTP}/v1", api_key="unused", max_retries=0)
ROUTES = ("off", "prompt_lookup", "draft_target", "eagle3")
GREEDY = {"model": MODEL, "max_tokens": 64, "temperature": 0}


def extra(route, **fields):
    # The reference goes on after <|end_of_text|>.
    return {"ignore_eos": True, "speculative": {"route": route}, **fields}


def reference_text(entry):
    return entry["models"]["pico-target"]["greedy_text"]


def models():
    check_equal([model.id for model in client.models.list()], [MODEL], "models")
    check_equal(client.models.retrieve(MODEL).id, MODEL, "the model")


def completions_are_the_reference():
    for route in ROUTES:
        with Watch() as watch:
            accepted = drafted = 0
            for entry in REFERENCE:
                reply = client.completions.create(**GREEDY, prompt=entry["text"],
                                                  extra_body=extra(route, metrics="summary"))
                check_equal(reply.choices[0].text, reference_text(entry), f"text of route {route}")
                check_equal(reply.choices[0].finish_reason, "length", "finish_reason")
                check_equal(reply.usage.prompt_tokens, len(entry["prompt_ids"]), "prompt_tokens")
                check_equal(reply.usage.completion_tokens, 64, "completion_tokens")
                if speculative := reply.metrics.get("speculative_decoding"):
                    accepted += speculative["num_accepted_draft_tokens"]
                    drafted += speculative["num_draft_tokens"]
        watch.check_outcomes(len(REFERENCE))
        check_equal((accepted, drafted), (watch.accepted, watch.drafted), f"accepted and drafted, route {route}")
        check((drafted > 0) == (route != "off"), f"route {route} drafted {drafted} tokens")
        print(f"-> {route}: {accepted:.0f} of {drafted:.0f} drafted tokens accepted, as in /metrics")


def batches():
    texts = [reference_text(entry) for entry in REFERENCE]
    for prompt in ([entry["text"] for entry in REFERENCE], [entry["prompt_ids"] for entry in REFERENCE]):
        reply = client.completions.create(**GREEDY, prompt=prompt, extra_body=extra("eagle3"))
        check_equal([choice.index for choice in reply.choices], list(range(len(texts))), "indices of a batch")
        check_equal([choice.text for choice in reply.choices], texts, "texts of a batch")


def streams():
    for route in ROUTES:
        for entry in REFERENCE[:3]:
            text, usage, chunks = "", None, 0
            for chunk in client.completions.create(**GREEDY, prompt=entry["text"], stream=True,
                                                   stream_options={"include_usage": True},
                                                   extra_body=extra(route)):
                text += chunk.choices[0].text if chunk.choices else ""
                usage = chunk.usage or usage
                chunks += 1
            check_equal(text, reference_text(entry), f"streamed text of route {route}")
            check_equal(usage.completion_tokens, 64, "completion_tokens of a stream")
            check(chunks > 5, f"a stream of 64 tokens came in {chunks} events")


def log_probabilities():
    entry = REFERENCE[0]
    (first, first_logit), (second, second_logit) = entry["models"]["pico-target"]["top10"][:2]
    reply = client.completions.create(model=MODEL, prompt=entry["text"], max_tokens=1, temperature=0, logprobs=2,
                                      extra_body={"return_tokens_as_token_ids": True})
    top = reply.choices[0].logprobs.top_logprobs[0]
    check_equal(set(top), {f"token_id:{first}", f"token_id:{second}"}, "the two most likely tokens")
    check_close(top[f"token_id:{first}"] - top[f"token_id:{second}"], first_logit - second_logit, 1e-3,
                "difference of two log-probabilities, which is that of the logits")


def choices_and_seeds():
    def texts(seed):
        reply = client.completions.create(model=MODEL, prompt="def main():", max_tokens=16, n=3, temperature=1,
                                          seed=seed)
        return [choice.text for choice in reply.choices]
    first = texts(7)
    check_equal(texts(7), first, "texts of one seed")
    check_equal(len(set(first)), 3, "different texts of n = 3")
    check(texts(8) != first, "another seed gave the same texts")
    with_seed = client.completions.with_raw_response.create(model=MODEL, prompt="def main():", max_tokens=1)
    check(with_seed.headers["x-specd-seed"].isdecimal(), "the header x-specd-seed is not a number")


def chats():
    request = {"model": MODEL, "messages": [{"role": "system", "content": "Write Python."},
                                            {"role": "user", "content": [{"type": "text", "text": "def area(r):"}]}],
               "max_completion_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**request, logprobs=True, top_logprobs=2)
    message = whole.choices[0].message
    check_equal(message.role, "assistant", "role")
    check(message.content, "the answer of a chat is empty")
    check_equal("".join(token.token for token in whole.choices[0].logprobs.content), message.content,
                "text of the log-probabilities")
    # The helper for streams puts the events together as a user interface would.
    with client.chat.completions.stream(**request) as stream:
        for _ in stream:
            pass
        streamed = stream.current_completion_snapshot  # get_final_completion() refuses the finish_reason `length`
    check_equal(streamed.choices[0].message.content, message.content, "streamed text of a chat")
    check_equal(streamed.choices[0].finish_reason, whole.choices[0].finish_reason, "finish_reason of a stream")
    check_equal(client.with_options(max_retries=2).chat.completions.create(**request).choices[0].message.content,
                message.content, "text of a chat asked again")


def mistakes():
    def refused(kind, what, call, param=None):
        try:
            call()
        except kind as error:
            if param is not None:
                check_equal(error.param, param, f"`param` of the error of {what}")
            return
        raise SystemExit(f"FAILED: {what} was not refused with {kind.__name__}")
    completion = lambda **fields: client.completions.create(**{"model": MODEL, "prompt": "a", **fields})
    chat = lambda **fields: client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "a"}], **fields)
    refused(openai.NotFoundError, "another model", lambda: completion(model="gpt-4"))
    refused(openai.NotFoundError, "another model's card", lambda: client.models.retrieve("gpt-4"))
    refused(openai.NotFoundError, "responses", lambda: client.responses.create(model=MODEL, input="a"))
    refused(openai.BadRequestError, "a negative temperature", lambda: completion(temperature=-1), "temperature")
    refused(openai.BadRequestError, "a suffix", lambda: completion(suffix="b"), "suffix")
    refused(openai.BadRequestError, "a prompt beyond the context", lambda: completion(prompt=[5] * 4096))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    refused(openai.BadRequestError, "tools", lambda: chat(tools=[tool]), "tools")
    refused(openai.BadRequestError, "guided JSON", lambda: chat(response_format={"type": "json_object"}))


async def many_at_once():
    asynchronous = openai.AsyncOpenAI(base_url=f"{HTTP}/v1", api_key="unused", max_retries=0)

    async def one(entry, route):
        text = ""
        async for chunk in await asynchronous.completions.create(**GREEDY, prompt=entry["text"], stream=True,
                                                                 extra_body=extra(route)):
            text += chunk.choices[0].text
        check_equal(text, reference_text(entry), f"text among many, route {route}")
    with Watch() as watch:
        await asyncio.gather(*(one(entry, route) for entry in REFERENCE for route in ROUTES))
    watch.check_outcomes(len(REFERENCE) * len(ROUTES))
    await asynchronous.close()


def given_up():
    with Watch() as watch:
        stream = client.completions.create(model=MODEL, prompt="def main():", max_tokens=1500, stream=True,
                                           extra_body=extra("off"))
        next(iter(stream))
        stream.close()
    check_equal(watch["requests_cancelled"], 1, "requests cancelled by a client that closed its stream")


models()
completions_are_the_reference()
batches()
streams()
log_probabilities()
choices_and_seeds()
chats()
mistakes()
asyncio.run(many_at_once())
given_up()
