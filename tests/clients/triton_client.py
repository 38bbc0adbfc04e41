"""tritonclient over HTTP and gRPC: what the server says of itself, inferences, streams, statistics, mistakes."""
import queue

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from common import (HTTP, KSERVE, MODEL, REFERENCE, TRITON_METRICS, Watch, check, check_close, check_equal,
                    counters)
from tritonclient.utils import InferenceServerException

TOKENS = 64


def text_of(entry):
    return entry["models"]["pico-target"]["greedy_text"]


def inputs(api, text, **more):
    """Tensors of the LLM API's backend: `text_input` and sampling_param_*."""
    tensors = {"text_input": np.array([text.encode()], dtype=np.object_),
               "sampling_param_max_tokens": np.array([TOKENS], dtype=np.int32),
               "sampling_param_temperature": np.array([0], dtype=np.float32),
               "sampling_param_ignore_eos": np.array([True]),  # the reference goes on after <|end_of_text|>
               "sampling_param_exclude_input_from_output": np.array([True]), **more}
    types = {"object": "BYTES", "int32": "INT32", "uint64": "UINT64", "float32": "FP32", "bool": "BOOL"}
    made = []
    for name, values in tensors.items():
        made.append(api.InferInput(name, list(values.shape), types[values.dtype.name]))
        made[-1].set_data_from_numpy(values)
    return made


def string(result, name="text_output"):
    values = result.as_numpy(name)
    check(values is not None and values.size == 1, f"{name} is {values!r}, expected one text")
    value = values.reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


def describes_itself(client, as_dict):
    check(client.is_server_live() and client.is_server_ready(), "the server is not ready")
    check(client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1"), "the model is not ready")
    check(not client.is_model_ready("gpt-4"), "a model that is not there is ready")
    check("statistics" in as_dict(client.get_server_metadata())["extensions"], "no extension `statistics`")
    metadata = as_dict(client.get_model_metadata(MODEL))
    check_equal(metadata["name"], MODEL, "name in the metadata")
    config = as_dict(client.get_model_config(MODEL))
    config = config.get("config", config)
    for kind in ("input", "output"):
        check_equal([tensor["name"] for tensor in config[kind]], [tensor["name"] for tensor in metadata[kind + "s"]],
                    f"{kind}s of the configuration, and of the metadata")
    index = as_dict(client.get_model_repository_index())
    index = index.get("models", []) if isinstance(index, dict) else index
    check_equal([(model["name"], model["state"]) for model in index], [(MODEL, "READY")], "models of the repository")


def inferences(api, client):
    for entry in REFERENCE:
        result = client.infer(MODEL, inputs(api, entry["text"]), request_id="7")
        check_equal(string(result), text_of(entry), "text")
    echoed = client.infer(MODEL, inputs(api, REFERENCE[0]["text"],
                                        sampling_param_exclude_input_from_output=np.array([False])))
    check_equal(string(echoed), REFERENCE[0]["text"] + text_of(REFERENCE[0]), "text with the prompt before it")


def acceptance(api, client):
    with Watch() as watch:
        result = client.infer(MODEL, inputs(api, REFERENCE[0]["text"],
                                            sampling_param_return_perf_metrics=np.array([True])))
    watch.check_outcomes(1)
    check(watch.drafted > 0, "nothing was drafted")
    check_equal((int(string(result, "total_accepted_draft_tokens")), int(string(result, "total_draft_tokens"))),
                (watch.accepted, watch.drafted), "accepted and drafted in the reply, and in /metrics")
    check_close(float(string(result, "acceptance_rate")), watch.accepted / watch.drafted, 1e-6, "acceptance rate")
    print(f"-> {api.__name__}: {watch.accepted:.0f} of {watch.drafted:.0f} drafted tokens accepted, as in /metrics")


def statistics(client, as_dict, infer):
    """One inference counts once: in the statistics, and in Triton's metrics."""
    def counts():
        model, = as_dict(client.get_inference_statistics(MODEL))["model_stats"]
        metrics = counters(TRITON_METRICS)
        return [int(model["inference_stats"]["success"].get("count", 0)), int(model.get("inference_count", 0)),
                metrics["nv_inference_request_success"], metrics["nv_inference_count"]]
    before = counts()
    infer()
    check_equal([after - was for after, was in zip(counts(), before)], [1, 1, 1, 1], "counts gained by one inference")


def mistakes(api, client):
    def refused(what, *arguments, **keywords):
        try:
            client.infer(*arguments, **keywords)
        except InferenceServerException as error:
            check(error.message(), f"the error of {what} has no text")
            return
        raise SystemExit(f"FAILED: {what} was not refused")
    prompt = REFERENCE[0]["text"]
    refused("another model", "gpt-4", inputs(api, prompt))
    refused("no text", MODEL, inputs(api, prompt)[1:])
    refused("a negative temperature", MODEL,
            inputs(api, prompt, sampling_param_temperature=np.array([-1], dtype=np.float32)))


def grpc_streams(client):
    """Several requests on one stream, whole or in pieces; each answer has the id of its request, and one is the last."""
    answers = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    for in_pieces in (False, True):
        with Watch() as watch:
            for number, entry in enumerate(REFERENCE):
                client.async_stream_infer(MODEL, inputs(grpc, entry["text"], streaming=np.array([in_pieces])),
                                          request_id=str(number), enable_empty_final_response=True)
            pieces = {str(number): [] for number in range(len(REFERENCE))}
            running = set(pieces)
            while running:
                result, error = answers.get(timeout=120)
                check(error is None, f"a request of the stream failed: {error}")
                response = result.get_response()
                check(response.id in running, f"an answer after the last one of request {response.id!r}")
                if any(output.name == "text_output" for output in response.outputs):
                    pieces[response.id].append(string(result))
                if response.parameters["triton_final_response"].bool_param:
                    running.remove(response.id)
        watch.check_outcomes(len(REFERENCE))
        for number, entry in enumerate(REFERENCE):
            check_equal("".join(pieces[str(number)]), text_of(entry), f"text of a stream, in pieces: {in_pieces}")
            check((len(pieces[str(number)]) > 1) == in_pieces, f"a text came in {len(pieces[str(number)])} pieces")
    # An error is an answer of its own, and the stream goes on.
    client.async_stream_infer("gpt-4", inputs(grpc, "a"), request_id="bad")
    check(answers.get(timeout=60)[1] is not None, "another model on a stream was not refused")
    client.async_stream_infer(MODEL, inputs(grpc, REFERENCE[0]["text"]), request_id="good")
    result, error = answers.get(timeout=60)
    check(error is None and string(result) == text_of(REFERENCE[0]), f"after a refused request: {error}")
    client.stop_stream()


def main():
    from google.protobuf.json_format import MessageToDict
    over_http = http.InferenceServerClient(HTTP.removeprefix("http://"))
    over_grpc = grpc.InferenceServerClient(KSERVE)
    as_dicts = {over_http: lambda reply: reply,
                over_grpc: lambda reply: MessageToDict(reply, preserving_proto_field_name=True)}
    for api, client in ((http, over_http), (grpc, over_grpc)):
        describes_itself(client, as_dicts[client])
        inferences(api, client)
        acceptance(api, client)
        statistics(client, as_dicts[client], lambda: client.infer(MODEL, inputs(api, "a")))
        mistakes(api, client)
    grpc_streams(over_grpc)
    over_http.close()
    over_grpc.close()


main()
