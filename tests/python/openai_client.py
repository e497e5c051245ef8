"""One call of OpenAI's own Python client: `openai_client.py BASE_URL KEY CALL`, with the arguments of the call as JSON on
standard input. Prints what came as JSON. The test that runs it says what is right.
"""

import json
import sys

import openai


def whole(answer):
    return answer.model_dump()


def pieces(stream):
    return [piece.model_dump() for piece in stream]


def main():
    base_url, key, name = sys.argv[1:]
    arguments = json.load(sys.stdin)
    # Without retries: a test wants the first answer.
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
    calls = {
        "chat": client.chat.completions.create,
        "completion": client.completions.create,
        "models": client.models.list,
    }
    try:
        answer = calls[name](**arguments)
        return pieces(answer) if arguments.get("stream") else whole(answer)
    except openai.APIStatusError as error:
        return {"error": type(error).__name__, "status": error.status_code, "message": error.message}


print(json.dumps(main()))
