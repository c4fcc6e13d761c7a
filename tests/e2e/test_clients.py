"""Clients that people have, unchanged: the openai package's helpers, LiteLLM, and an agent of openai-agents that uses a tool."""

import asyncio
import json
import os

import pydantic
import pytest
from conftest import NAME, question, scripted

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read at import: no fetch of prices from the network

OFF = {"extra_body": {"enable_thinking": False}}
CALL = "Let me look.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>"
# What the agent's model says: a call, and when it was answered, a sentence.
SCRIPT = [{"when": "<tool_response>15 degrees", "say": ["I know now.</think>It is 15 degrees in Bern."]}, {"when": "Bern", "say": [CALL]}]


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(max_length=16)
    age: int = pydantic.Field(ge=0, le=150)


def test_openai_parses_structured_output(client):
    for seed in range(3):
        answer = client.chat.completions.parse(model=NAME, messages=question("Name a sailor and his age."), response_format=Person, max_tokens=300,
                                               temperature=1.0, seed=seed, **OFF)
        message = answer.choices[0].message
        assert isinstance(message.parsed, Person) and message.content == answer.choices[0].message.content
        assert Person.model_validate_json(message.content) == message.parsed


def test_openai_parses_the_arguments_of_a_strict_tool(client):
    class GetWeather(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        city: str

    import openai
    answer = client.chat.completions.parse(model=NAME, messages=question("What is the weather in Bern?"), tools=[openai.pydantic_function_tool(GetWeather)],
                                           tool_choice="required", max_tokens=200, temperature=0, **OFF)
    for call in answer.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, GetWeather)


def test_openai_stream_helper_sees_what_the_whole_answer_says(client):
    request = dict(model=NAME, messages=question("What is 2 + 3?"), temperature=0, max_tokens=60)
    kinds = []
    with client.chat.completions.stream(**request, **OFF) as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**request, **OFF)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert "content.delta" in kinds and kinds[-1] in ("content.done", "chunk")


def test_openai_stream_helper_gathers_tool_calls():
    with scripted(script=SCRIPT) as server:
        tools = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}}]
        with server.client().chat.completions.stream(model=NAME, messages=question("Weather in Bern?"), tools=tools) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            message = stream.get_final_completion().choices[0].message
        assert [(e.name, json.loads(e.arguments)) for e in done] == [("get_weather", {"city": "Bern"})]
        assert message.tool_calls[0].id and not message.content


def test_openai_completions_take_several_prompts(client):
    answer = client.completions.create(model=NAME, prompt=["Once upon", "It was"], n=2, max_tokens=3, logprobs=1, temperature=0)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert all(len(c.logprobs.tokens) <= 3 for c in answer.choices)


@pytest.fixture(scope="module")
def litellm():
    import litellm
    return litellm


def to(server) -> dict:
    return {"model": f"openai/{NAME}", "api_base": server.url + "/v1", "api_key": "none"}


def test_litellm_answers_whole_and_streamed(server, litellm):
    request = dict(messages=question("What is 2 + 3?"), temperature=0, max_tokens=80, **to(server))
    whole = litellm.completion(**request)
    assert whole.choices[0].message.reasoning_content and whole.usage.total_tokens > 0
    pieces = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **request))
    text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    thought = "".join(getattr(p.choices[0].delta, "reasoning_content", None) or "" for p in pieces if p.choices)
    assert text == (whole.choices[0].message.content or "") and thought == whole.choices[0].message.reasoning_content


# B19
def test_litellm_keeps_parallel_calls_apart(litellm):
    two = "</think>" + CALL.split("</think>")[1] + "<tool_call>get_time</tool_call>"
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}} for name in ("get_weather", "get_time")]
    with scripted(script=[{"say": [two]}]) as server:
        for stream in (False, True):
            answer = litellm.completion(messages=question("Bern?"), tools=tools, stream=stream, **to(server))
            if stream:
                answer = litellm.stream_chunk_builder(list(answer))
            calls = answer.choices[0].message.tool_calls
            assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [("get_weather", {"city": "Bern"}), ("get_time", {})]
            assert len({c.id for c in calls}) == 2 and answer.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_calls_its_tool_and_answers(streamed):
    import agents
    import openai
    agents.set_tracing_disabled(True)
    asked = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "15 degrees"

    async def run(server):
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            model = agents.OpenAIChatCompletionsModel(model=NAME, openai_client=client)
            agent = agents.Agent(name="weather", instructions="Answer in one sentence.", model=model, tools=[get_weather])
            if not streamed:
                return (await agents.Runner.run(agent, "What is the weather in Bern?")).final_output
            result = agents.Runner.run_streamed(agent, "What is the weather in Bern?")
            async for _ in result.stream_events():
                pass
            return result.final_output

    with scripted(script=SCRIPT) as server:
        assert asyncio.run(run(server)) == "It is 15 degrees in Bern."
    assert asked == ["Bern"]


def test_an_agent_with_tools_and_a_typed_answer(server):
    """A form and tools in one request: openai-agents asks so for an agent with an output type."""
    import agents
    import openai
    agents.set_tracing_disabled(True)

    @agents.function_tool
    def get_age(name: str) -> int:
        """The age of a person."""
        return 41

    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            model = agents.OpenAIChatCompletionsModel(model=NAME, openai_client=client)
            settings = agents.ModelSettings(max_tokens=300, temperature=0, extra_body={"enable_thinking": False})
            agent = agents.Agent(name="sailor", model=model, tools=[get_age], output_type=Person, model_settings=settings)
            return (await agents.Runner.run(agent, "Name a sailor and his age.", max_turns=8)).final_output

    try:
        assert isinstance(asyncio.run(run()), Person)
    except agents.MaxTurnsExceeded:
        pass  # the demo model may ask for the age again and again; each of its turns was a valid call
